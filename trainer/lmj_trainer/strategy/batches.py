"""The data of a step or an evaluation, as tensors: every stage derives it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lmj_trainer.data.batch import collate
from lmj_trainer.data.masking import Masking
from lmj_trainer.data.order import epoch_order, grouped, steps_per_epoch
from lmj_trainer.model.inputs import Inputs
from lmj_trainer.strategy.step_data import StepData
from lmj_trainer.task.registry import TASKS

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec
    from lmj_trainer.data.order import Indices
    from lmj_trainer.data.split import Split
    from lmj_trainer.dataset.stored import PreparedDataset
    from lmj_trainer.model.stage import Place


class Batches(StepData):
    """Those of tokens."""

    def __init__(self, prepared: PreparedDataset, spec: JobSpec, device: torch.device) -> None:
        super().__init__(prepared.rows["train"], spec)
        self._prepared, self._device = prepared, device
        task = TASKS[spec.model.task]
        self._targets, self._evaluation_rows = task.targets, task.evaluation_rows
        self._masking: Masking | None = None
        """Hides tokens; None: the task hides none."""
        if task.masked:
            assert prepared.mask_id is not None, "the task asked for it"
            self._masking = Masking(spec.training.seed, spec.dataset.masked_part, prepared.mask_id, prepared.vocab_size)
        self._grouped: tuple[int, Indices] | None = None
        """The newest epoch that was asked for, and its batches."""

    def _rows(self, step: int) -> Indices:
        """As of :class:`StepData`, or of a batch of rows of similar length."""
        training = self._training
        if not training.group_by_length:
            return super()._rows(step)
        epoch, number = divmod(step, steps_per_epoch(self.rows, training))
        if self._grouped is None or self._grouped[0] != epoch:
            lengths = np.diff(self._prepared.splits["train"].offsets)
            order = epoch_order(training.seed, epoch, self.rows)
            self._grouped = epoch, grouped(order, lengths, self.samples, training.seed, epoch)
        rows: Indices = self._grouped[1][number]
        return rows

    def _data(self, split: str, rows: Indices) -> tuple[Split, Indices]:
        """Tokens with ``rows`` among them, and which of them these are."""
        return self._prepared.splits[split], rows

    def targets(self, split: str, rows: Indices, place: Place | None = None) -> torch.Tensor:
        """As of :class:`StepData`."""
        data, which = self._data(split, rows)
        targets = self._targets(data, which, data.max_length)
        return torch.from_numpy(targets if self._masking is None else self._masking.targets(targets, _places(rows, place)))

    def evaluation(self, split: str) -> list[Indices]:
        """Rows of similar length, longest first (so that a lack of memory shows at once)."""
        data = self._prepared.splits[split]
        lengths = np.diff(data.offsets)
        order = np.argsort(-lengths, kind="stable")
        rows = self._evaluation_rows
        return [order[i : i + rows] for i in range(0, len(order), rows)]

    def inputs(self, split: str, rows: Indices, place: Place | None = None) -> Inputs:
        """As of :class:`StepData`."""
        return self._inputs(*self._data(split, rows), rows, place)

    def _inputs(self, data: Split, which: Indices, rows: Indices, place: Place | None) -> Inputs:
        """The micro-batch of what is at the places ``which`` of ``data``: the ``rows`` of the split."""
        batch = collate(data, which, self._prepared.pad_id, self._targets)
        if self._masking is not None:
            batch = self._masking.hidden(batch, _places(rows, place))

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(self._device)

        kinds = None if batch.token_type_ids is None else tensor(batch.token_type_ids)
        return Inputs(tensor(batch.input_ids), tensor(batch.attention_mask), kinds, tensor(batch.labels))


def _places(rows: Indices, place: Place | None) -> list[tuple[int, ...]]:
    """What hiding tokens of each of ``rows`` is a function of, beside the seed: in an evaluation its number in the split."""
    if place is None:
        return [(int(row),) for row in rows]
    return [(place.step, place.first + number) for number in range(len(rows))]
