"""Binary cross entropy of each label; accuracy of whole rows, and F1 of all labels together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F  # noqa: N812 - its usual name

from lmj_api.protocol import Evaluation
from lmj_trainer.metrics import in_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass
class LabelCounts:
    """Rows, and labels that are there or were predicted."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    """The number of each micro-batch, and the sum over its rows of their losses, in float64."""
    rows: int = 0
    whole: int = 0
    """Rows of which each label was predicted as it is."""
    hits: int = 0
    """Labels that are there and were predicted."""
    both: int = 0
    """Labels that are there, and those that were predicted: together."""

    def add(self, number: int, output: Tensor, labels: Tensor) -> None:
        """``output``: logits ``[b, labels]``; ``labels``: 1 where a row has one, float32 ``[b, labels]``."""
        each = F.binary_cross_entropy_with_logits(output.double(), labels.double(), reduction="none").mean(1)
        self.losses.append((number, each.sum().item()))
        said, there = output > 0, labels > 0
        self.rows += len(labels)
        self.whole += int((said == there).all(1).sum())
        self.hits += int((said & there).sum())
        self.both += int(said.sum()) + int(there.sum())

    def merge(self, payload: Mapping[str, Any]) -> None:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        self.losses.extend(payload["losses"])
        for name in ("rows", "whole", "hits", "both"):
            setattr(self, name, getattr(self, name) + payload[name])

    def payload(self) -> dict[str, Any]:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        return vars(self)


class LabelsObjective:
    """As transformers has it for ``multi_label_classification``."""

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """``output``: logits ``[b, labels]``; ``labels``: 1 where a row has one, float32 ``[b, labels]``."""
        return F.binary_cross_entropy_with_logits(output, labels)

    def samples(self, labels: Tensor) -> int:
        """The rows."""
        return len(labels)

    def counts(self, payload: Any = None) -> LabelCounts:
        """As of :class:`~lmj_trainer.task.port.Objective`."""
        return LabelCounts() if payload is None else LabelCounts(**payload)

    def evaluation(self, counts: LabelCounts, split: str, step: int) -> Evaluation:
        """Accuracy: of rows with all labels right. F1: micro-averaged, 0 where nothing is there nor predicted."""
        if counts.rows == 0:
            raise ValueError(f"no row of {split} was counted")
        return Evaluation(
            split=split,
            step=step,
            samples=counts.rows,
            loss=in_order(counts.losses) / counts.rows,
            accuracy=counts.whole / counts.rows,
            f1=2 * counts.hits / counts.both if counts.both else 0.0,
        )
