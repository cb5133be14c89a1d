"""The data of a step or an evaluation, as tensors: every stage derives it alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from lmj_trainer.data.batch import collate
from lmj_trainer.data.masking import Masking
from lmj_trainer.data.order import Indices, epoch_order, grouped, micro_batches, step_rows, steps_per_epoch, total_steps
from lmj_trainer.model.inputs import Inputs
from lmj_trainer.task.registry import TASKS

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec
    from lmj_trainer.dataset.prepared import PreparedDataset


@dataclass(frozen=True)
class Where:
    """Where a micro-batch of training is: what hiding tokens is a function of."""

    step: int
    """0-based."""
    first: int
    """The place of its first row in the global batch."""


class Batches:
    """Batches are a function of the step's number, so there is no loader and no loader state."""

    def __init__(self, prepared: PreparedDataset, spec: JobSpec, device: torch.device) -> None:
        self._prepared, self._training, self._device = prepared, spec.training, device
        self.shards = spec.data_parallel.shards
        """Parts of a step that are added up as a tree."""
        task = TASKS[spec.model.task]
        self._targets, self._evaluation_rows = task.targets, task.evaluation_rows
        self._masking: Masking | None = None
        """Hides tokens; None: the task hides none."""
        if task.masked:
            assert prepared.mask_id is not None, "the task asked for it"
            self._masking = Masking(spec.training.seed, spec.dataset.masked_part, prepared.mask_id, prepared.vocab_size)
        self.rows = len(prepared.splits["train"])
        self.steps = total_steps(self.rows, spec.training)
        self._micro_batches = spec.pipeline.micro_batches * spec.training.gradient_accumulation_steps // self.shards
        self.samples = spec.training.batch_size * spec.training.gradient_accumulation_steps
        self._grouped: tuple[int, Indices] | None = None
        """The newest epoch that was asked for, and its batches."""

    def train(self, step: int) -> list[list[Indices]]:
        """The rows of each micro-batch of the 0-based ``step``, by shard. Each shard's first one goes in halves."""
        rows = self._rows(step)
        return [micro_batches(part, self._micro_batches) for part in np.split(rows, self.shards)]

    def _rows(self, step: int) -> Indices:
        training = self._training
        if not training.group_by_length:
            return step_rows(self.rows, training, step)
        epoch, place = divmod(step, steps_per_epoch(self.rows, training))
        if self._grouped is None or self._grouped[0] != epoch:
            lengths = np.diff(self._prepared.splits["train"].offsets)
            order = epoch_order(training.seed, epoch, self.rows)
            self._grouped = epoch, grouped(order, lengths, self.samples, training.seed, epoch)
        rows: Indices = self._grouped[1][place]
        return rows

    def targets(self, split: str, rows: Indices, where: Where | None = None) -> torch.Tensor:
        """The labels of a micro-batch alone, as :meth:`inputs` has them but for padding, on the CPU."""
        data = self._prepared.splits[split]
        targets = self._targets(data, rows, data.max_length)
        return torch.from_numpy(targets if self._masking is None else self._masking.targets(targets, _places(rows, where)))

    def evaluation(self, split: str) -> list[np.ndarray]:
        """Rows of each micro-batch of ``split``, of similar length, longest first (so that a lack of memory shows at once)."""
        data = self._prepared.splits[split]
        lengths = np.diff(data.offsets)
        order = np.argsort(-lengths, kind="stable")
        rows = self._evaluation_rows
        return [order[i : i + rows] for i in range(0, len(order), rows)]

    def inputs(self, split: str, rows: np.ndarray, where: Where | None = None) -> Inputs:
        """The micro-batch of these rows. ``where``: of a step; None: in an evaluation."""
        batch = collate(self._prepared.splits[split], rows, self._prepared.pad_id, self._targets)
        if self._masking is not None:
            batch = self._masking.hidden(batch, _places(rows, where))

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(self._device)

        kinds = None if batch.token_type_ids is None else tensor(batch.token_type_ids)
        return Inputs(tensor(batch.input_ids), tensor(batch.attention_mask), kinds, tensor(batch.labels))


def _places(rows: Indices, where: Where | None) -> list[tuple[int, ...]]:
    """What hiding tokens of each of ``rows`` is a function of, beside the seed."""
    if where is None:
        return [(int(row),) for row in rows]
    return [(where.step, where.first + place) for place in range(len(rows))]
