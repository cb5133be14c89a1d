"""The data of a step or an evaluation, as tensors: every stage derives it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lmj_trainer.data.batch import collate
from lmj_trainer.model.inputs import Inputs
from lmj_trainer.strategy.step_data import StepData
from lmj_trainer.task.registry import TASKS

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec
    from lmj_trainer.data.order import Indices
    from lmj_trainer.dataset.prepared import PreparedDataset
    from lmj_trainer.model.stage import Place


class Batches(StepData):
    """Those of tokens."""

    def __init__(self, prepared: PreparedDataset, spec: JobSpec, device: torch.device) -> None:
        super().__init__(len(prepared.splits["train"]), spec)
        self._prepared, self._device = prepared, device
        task = TASKS[spec.model.task]
        self._targets, self._evaluation_rows = task.targets, task.evaluation_rows

    def targets(self, split: str, rows: Indices, place: Place | None = None) -> torch.Tensor:
        """As of :class:`StepData`."""
        data = self._prepared.splits[split]
        return torch.from_numpy(self._targets(data, rows, data.max_length))

    def evaluation(self, split: str) -> list[Indices]:
        """Rows of similar length, longest first (so that a lack of memory shows at once)."""
        data = self._prepared.splits[split]
        lengths = np.diff(data.offsets)
        order = np.argsort(-lengths, kind="stable")
        rows = self._evaluation_rows
        return [order[i : i + rows] for i in range(0, len(order), rows)]

    def inputs(self, split: str, rows: Indices, place: Place | None = None) -> Inputs:
        """As of :class:`StepData`."""
        batch = collate(self._prepared.splits[split], rows, self._prepared.pad_id, self._targets)

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(self._device)

        kinds = None if batch.token_type_ids is None else tensor(batch.token_type_ids)
        return Inputs(tensor(batch.input_ids), tensor(batch.attention_mask), kinds, tensor(batch.labels))
