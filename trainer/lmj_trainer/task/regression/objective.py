"""Mean squared error; mean absolute error, and Pearson's correlation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F  # noqa: N812 - its usual name

from lmj_api.protocol import Evaluation
from lmj_trainer.metrics import in_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass
class Errors:
    """Sums of each micro-batch, in float64: they are added up in the micro-batches' order, whoever has counted which."""

    rows: int = 0
    sums: list[tuple[int, list[float]]] = field(default_factory=list)
    """The number of each micro-batch, and over its rows: squared errors, absolute errors, x, y, x², y², xy of true x and predicted y."""

    def add(self, number: int, output: Tensor, labels: Tensor) -> None:
        """``output``: ``[b, 1]``; ``labels``: float32 ``[b]``."""
        x, y = labels.double(), output.double()[:, 0]
        error = y - x
        of_rows = (error * error, error.abs(), x, y, x * x, y * y, x * y)
        self.sums.append((number, [values.sum().item() for values in of_rows]))
        self.rows += len(labels)

    def merge(self, payload: Mapping[str, Any]) -> None:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        self.sums.extend(payload["sums"])
        self.rows += payload["rows"]

    def payload(self) -> dict[str, Any]:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        return vars(self)


class NumberObjective:
    """As transformers has it for ``regression``."""

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """``output``: ``[b, 1]``; ``labels``: float32 ``[b]``."""
        return F.mse_loss(output[:, 0], labels)

    def samples(self, labels: Tensor) -> int:
        """The rows."""
        return len(labels)

    def counts(self, payload: Any = None) -> Errors:
        """As of :class:`~lmj_trainer.task.port.Objective`."""
        return Errors() if payload is None else Errors(**payload)

    def evaluation(self, counts: Errors, split: str, step: int) -> Evaluation:
        """No accuracy. No correlation where all numbers, or all predictions, are the same."""
        if counts.rows == 0:
            raise ValueError(f"no row of {split} was counted")
        n = counts.rows
        squared, absolute, x, y, xx, yy, xy = (in_order((number, sums[k]) for number, sums in counts.sums) / n for k in range(7))
        spread = (xx - x * x) * (yy - y * y)
        return Evaluation(
            split=split,
            step=step,
            samples=n,
            loss=squared,
            mean_absolute_error=absolute,
            correlation=(xy - x * y) / math.sqrt(spread) if spread > 0 else None,
        )
