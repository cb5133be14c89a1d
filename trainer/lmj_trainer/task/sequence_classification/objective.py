"""Cross entropy over the labels; accuracy and F1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F  # noqa: N812 - its usual name

from lmj_trainer.metrics import count, evaluate_counts, in_order, merge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from lmj_api.protocol import Evaluation


@dataclass
class Confusion:
    """Rows by their true and their predicted label."""

    losses: list[tuple[int, float]]
    """The number of each micro-batch, and the cross entropy of all its rows in float64."""
    confusion: list[list[int]]
    """Rows: true label; columns: predicted label."""

    def add(self, number: int, output: Tensor, labels: Tensor) -> None:
        """``output``: logits ``[b, labels]``; ``labels``: ids ``[b]``, int64."""
        self.losses.append((number, F.cross_entropy(output.double(), labels, reduction="sum").item()))
        count(self.confusion, labels.tolist(), output.argmax(1).tolist())

    def merge(self, payload: Mapping[str, Any]) -> None:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        self.losses.extend(payload["losses"])
        merge(self.confusion, payload["confusion"])

    def payload(self) -> dict[str, Any]:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        return vars(self)


class TextObjective:
    """Cross entropy over the labels; accuracy and F1."""

    def __init__(self, labels: Sequence[str], smoothing: float = 0.0) -> None:
        """``labels``: their names, in the order of their ids; ``smoothing``: as of :class:`~lmj_trainer.task.port.Task`."""
        self._labels, self._smoothing = list(labels), smoothing

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """``output``: logits ``[b, labels]``; ``labels``: ids ``[b]``, int64."""
        return F.cross_entropy(output, labels, label_smoothing=self._smoothing)

    def samples(self, labels: Tensor) -> int:
        """The rows."""
        return len(labels)

    def counts(self, payload: Any = None) -> Confusion:
        """As of :class:`~lmj_trainer.task.port.Objective`."""
        size = len(self._labels)
        return Confusion(**payload) if payload is not None else Confusion([], [[0] * size for _ in range(size)])

    def evaluation(self, counts: Confusion, split: str, step: int) -> Evaluation:
        """As of :class:`~lmj_trainer.task.port.Objective`."""
        return evaluate_counts(counts.confusion, in_order(counts.losses), self._labels, split, step)
