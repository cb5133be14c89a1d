"""What a user's class computes of the model's output: its loss, and its metrics as means over a split."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from lmj_api.protocol import MOST_METRICS, Evaluation
from lmj_trainer.errors import UserError
from lmj_trainer.metrics import in_order
from lmj_trainer.model.inputs import Targets
from lmj_trainer.own.collate import moved

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from lmj_trainer.own.source import Own

_LOSS = ""
"""The loss among the sums, by a name that no metric has."""


@dataclass
class Sums:
    """What was computed of each micro-batch."""

    own: Own
    samples: int = 0
    parts: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """The number of each micro-batch, and its loss and metrics, times its samples."""
    kept: list[tuple[int, Any]] = field(default_factory=list)
    """The number of each micro-batch, and what the class keeps of it, on the CPU."""

    def add(self, number: int, output: Any, labels: Any) -> None:
        """As of :class:`~lmj_trainer.task.port.Counts`; ``labels``: :class:`Targets`."""
        own, count = self.own, samples_of(self.own, labels)
        found = {_LOSS: loss_of(own, output, labels).double().item()}
        if own.has("metrics"):
            found |= _numbers(own, "metrics", own.call("metrics", output, labels.value))
        if own.has("keep"):
            self.kept.append((number, moved(own.call("keep", output, labels.value), torch.device("cpu"))))
        self.samples += count
        # A mean over nothing is no number, and adds nothing.
        self.parts.append((number, {name: value * count if count else 0.0 for name, value in found.items()}))

    def merge(self, payload: Mapping[str, Any]) -> None:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        self.samples += payload["samples"]
        self.parts.extend((number, dict(values)) for number, values in payload["parts"])
        self.kept.extend(payload["kept"])

    def payload(self) -> dict[str, Any]:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        return {"samples": self.samples, "parts": self.parts, "kept": self.kept}

    def means(self) -> dict[str, float]:
        """Of each over all samples, the loss too."""
        return {
            name: in_order((number, values.get(name, 0.0)) for number, values in self.parts) / self.samples
            for name in dict.fromkeys(name for _, values in sorted(self.parts, key=lambda part: part[0]) for name in values)
        }


class OwnObjective:
    """Methods are those of :class:`~lmj_trainer.task.port.Objective`."""

    def __init__(self, own: Own) -> None:
        self._own = own

    def loss(self, output: Any, labels: Any) -> Tensor:
        """``output``: what the last unit gives; ``labels``: :class:`Targets`, what ``collate`` gave for the loss."""
        return loss_of(self._own, output, labels)

    def samples(self, labels: Any) -> int:
        """The rows, or what the class says."""
        return samples_of(self._own, labels)

    def counts(self, payload: Any = None) -> Sums:
        """As of :class:`~lmj_trainer.task.port.Objective`."""
        counts = Sums(self._own)
        if payload is not None:
            counts.merge(payload)
        return counts

    def evaluation(self, counts: Sums, split: str, step: int) -> Evaluation:
        """``accuracy`` among the metrics is the accuracy. What is no finite number is left out; as a score it is the worst there is."""
        if counts.samples == 0:
            raise ValueError(f"no row of {split} was counted")
        means, own = counts.means(), self._own
        loss = means.pop(_LOSS)
        if own.has("evaluate"):
            kept = [value for _, value in sorted(counts.kept, key=lambda part: part[0])]
            means |= _numbers(own, "evaluate", own.call("evaluate", kept))
        if own.has("summary"):
            means = _numbers(own, "summary", own.call("summary", {"loss": loss, **means}))
        score = None
        if own.has("score"):
            given = _numbers(own, "score", {"score": own.call("score", {"loss": loss, **means})})["score"]
            score = given if math.isfinite(given) else -sys.float_info.max
        found = means.pop("accuracy", math.nan)
        accuracy = found if math.isfinite(found) else None
        return Evaluation(
            split=split, step=step, samples=counts.samples, loss=loss, accuracy=accuracy, metrics=means, own_score=score
        )


def loss_of(own: Own, output: Any, labels: Targets) -> Tensor:
    """The mean loss of a micro-batch. UserError: it is no number to be differentiated."""
    loss = own.call("loss", output, labels.value)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        what = f"a tensor of {loss.dtype} {list(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise UserError(
            f"{own.where('loss')}: {own.name}.loss gives {what}: the mean over the rows is needed, a tensor of one float"
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise UserError(f"{own.where('loss')}: {own.name}.loss gives a number that does not depend on the model's weights")
    return loss.reshape(())


def samples_of(own: Own, labels: Targets) -> int:
    """How much a micro-batch counts. UserError: it is no whole number."""
    if not own.has("samples"):
        return labels.rows
    found = own.call("samples", labels.value)
    count = int(found.item()) if isinstance(found, torch.Tensor) and found.numel() == 1 else found
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise UserError(f"{own.where('samples')}: {own.name}.samples gives {found!r}: a whole number is needed")
    return count


def _numbers(own: Own, method: str, found: Any) -> dict[str, float]:
    """What a method gave, by name. UserError: some of it is no number."""
    if not isinstance(found, dict) or not all(isinstance(name, str) and name for name in found):
        raise UserError(
            f"{own.where(method)}: {own.name}.{method} gives a {type(found).__name__}: numbers by name are needed, a dict"
        )
    if len(found) > MOST_METRICS:
        raise UserError(f"{own.where(method)}: {own.name}.{method} gives {len(found)} metrics: {MOST_METRICS} are the most")
    numbers: dict[str, float] = {}
    for name, value in found.items():
        number = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        if not isinstance(number, Real):
            raise UserError(
                f"{own.where(method)}: {own.name}.{method} gives {name!r} as a {type(value).__name__}: a number is needed"
            )
        numbers[name] = float(number) if math.isfinite(number) else math.nan
    return numbers
