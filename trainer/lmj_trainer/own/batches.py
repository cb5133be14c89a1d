"""The data of a step or an evaluation of a user's own class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lmj_trainer.model.inputs import Collated, Targets
from lmj_trainer.model.randomness import derive_seed
from lmj_trainer.own.collate import collated
from lmj_trainer.strategy.step_data import StepData

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec
    from lmj_trainer.data.order import Indices
    from lmj_trainer.dataset.stored import PreparedRows
    from lmj_trainer.model.stage import Place
    from lmj_trainer.own.source import Own


_EVALUATION_ROWS = 32
"""Of a micro-batch without a backward pass, where the class does not say."""


class OwnBatches(StepData):
    """What the class collates of rows. They are the same rows as any other job's; what it draws is a function of the micro-batch."""

    def __init__(self, prepared: PreparedRows, spec: JobSpec, device: torch.device, own: Own) -> None:
        super().__init__(len(prepared.splits["train"]), spec)
        self._own, self._tables, self._device = own, prepared.splits, device

    def targets(self, split: str, rows: Indices, place: Place | None = None) -> Targets:
        """Without a method that counts them, the rows are enough."""
        if not self._own.has("samples"):
            return Targets(len(rows), None)
        return self._collated(split, rows, place, torch.device("cpu")).labels

    def evaluation(self, split: str) -> list[Indices]:
        """As they are in the split."""
        every = np.arange(len(self._tables[split]), dtype=np.int64)
        size: int = getattr(self._own.task, "evaluation_rows", _EVALUATION_ROWS)
        return [every[i : i + size] for i in range(0, len(every), size)]

    def inputs(self, split: str, rows: Indices, place: Place | None = None) -> Collated:
        """As of :class:`StepData`."""
        return self._collated(split, rows, place, self._device)

    def _collated(self, split: str, rows: Indices, place: Place | None, device: torch.device) -> Collated:
        where = (int(rows[0]),) if place is None else (place.step, place.micro_batch)
        seed = derive_seed(self._training.seed, f"collate {split}", *where)
        return collated(self._own, self._tables[split].rows(rows), seed, device)
