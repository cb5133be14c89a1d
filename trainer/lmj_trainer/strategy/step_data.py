"""Which rows a step and its micro-batches have; what is made of them is a task's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_trainer.data.order import Indices, micro_batches, step_rows, total_steps
from lmj_trainer.model.stage import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmj_api.spec import JobSpec


class StepData(ABC):
    """Batches are a function of the step's number, so there is no loader and no loader state."""

    def __init__(self, rows: int, spec: JobSpec) -> None:
        """``rows``: of training."""
        self._training = spec.training
        self.shards = spec.data_parallel.shards
        """Parts of a step that are added up as a tree."""
        self.rows = rows
        self.steps = total_steps(self.rows, spec.training)
        self._micro_batches = spec.pipeline.micro_batches * spec.training.gradient_accumulation_steps // self.shards
        self._in_halves = spec.pipeline.first_in_halves
        self.samples = spec.training.batch_size * spec.training.gradient_accumulation_steps

    def train(self, step: int) -> list[list[Indices]]:
        """The rows of each micro-batch of the 0-based ``step``, by shard. Each shard's first may go in halves."""
        return [
            micro_batches(part, self._micro_batches, in_halves=self._in_halves)
            for part in np.split(self._rows(step), self.shards)
        ]

    def expect(self, step: int) -> None:  # noqa: B027 - most have all rows at hand
        """The 0-based ``step`` is the next that may be asked for: what takes time to get may be begun with. Does not wait."""

    def fetch(self, step: int, check: Callable[[], None]) -> None:  # noqa: B027 - as above
        """Have the rows of the 0-based ``step`` at hand, before :meth:`inputs` and :meth:`targets` are asked for them. ``check`` is called
        while they are waited for, and may raise.
        """

    def rehearsal(self) -> Any:
        """As :meth:`inputs`: a micro-batch that is as those of training."""
        return self.inputs("train", self.train(0)[0][0], Place(0, 0))

    def _rows(self, step: int) -> Indices:
        """Those of the global batch of the 0-based ``step``."""
        return step_rows(self.rows, self._training, step)

    @abstractmethod
    def targets(self, split: str, rows: Indices, place: Place | None = None) -> Any:
        """The labels of a micro-batch alone, as :meth:`inputs` has them but for padding, on the CPU."""

    @abstractmethod
    def evaluation(self, split: str) -> list[Indices]:
        """Rows of each micro-batch of ``split``."""

    @abstractmethod
    def inputs(self, split: str, rows: Indices, place: Place | None = None) -> Any:
        """The micro-batch of these rows, with its ``labels``.

        ``place``: where in training it is, for what is drawn while it is made; None: in an evaluation.
        """
