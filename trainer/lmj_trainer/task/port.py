"""The port of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from lmj_api.protocol import Evaluation


class Counts(Protocol):
    """What a pass over a split adds up, in the order of its micro-batches."""

    def add(self, output: Tensor, labels: Tensor) -> None:
        """Count a micro-batch. ``output``: of the model's head; ``labels``: int64."""

    def payload(self) -> Any:
        """All of it, as plain numbers and lists: it is sent to the rank that reports it."""


class Task(Protocol):
    """What the last stage computes of the head's output. Pure: nothing of it is state."""

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a micro-batch, to be differentiated."""

    def samples(self, labels: Tensor) -> int:
        """How much a micro-batch counts beside the others of its step."""

    def counts(self, payload: Any = None) -> Counts:
        """Nothing counted yet, or what ``payload`` says."""

    def evaluation(self, counts: Any, split: str, step: int) -> Evaluation:
        """What ``counts`` says of the model after ``step`` steps. Raises ValueError when nothing was counted."""
