"""Cross entropy over the labels of words; accuracy, and F1 of entities where the labels are their tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F  # noqa: N812 - its usual name

from lmj_trainer.data.split import NO_LABEL
from lmj_trainer.metrics import count, evaluate_counts, in_order, merge
from lmj_trainer.task.token_classification.entities import are_tags, entities

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from lmj_api.protocol import Evaluation


@dataclass
class WordCounts:
    """Words by their true and their predicted label, and entities."""

    labels: Sequence[str]
    """Names in the order of their ids."""
    losses: list[tuple[int, float]]
    """The number of each micro-batch, and the cross entropy of all its words in float64."""
    confusion: list[list[int]]
    """Rows: true label; columns: predicted label."""
    hits: int = 0
    """Entities that were predicted as they are."""
    both: int = 0
    """Entities that are there, and those that were predicted: together."""

    def add(self, number: int, output: Tensor, labels: Tensor) -> None:
        """``output``: logits ``[b, t, labels]``; ``labels``: ids ``[b, t]``, int64, ``NO_LABEL`` where there is none."""
        self.losses.append((number, F.cross_entropy(output.double().flatten(0, 1), labels.flatten(), reduction="sum").item()))
        tagged = are_tags(self.labels)
        for true, predicted in zip(labels.tolist(), output.argmax(2).tolist(), strict=True):
            pairs = [(t, p) for t, p in zip(true, predicted, strict=True) if t != NO_LABEL]
            count(self.confusion, [t for t, _ in pairs], [p for _, p in pairs])
            if tagged:
                there, said = (entities([self.labels[pair[side]] for pair in pairs]) for side in (0, 1))
                self.hits += len(there & said)
                self.both += len(there) + len(said)

    def merge(self, payload: Mapping[str, Any]) -> None:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        self.losses.extend(payload["losses"])
        merge(self.confusion, payload["confusion"])
        self.hits += payload["hits"]
        self.both += payload["both"]

    def payload(self) -> dict[str, Any]:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        return {name: value for name, value in vars(self).items() if name != "labels"}


class WordObjective:
    """Words count; tokens that only go on with one, and special ones, do not."""

    def __init__(self, labels: Sequence[str], smoothing: float = 0.0) -> None:
        """``labels``: their names, in the order of their ids; ``smoothing``: as of :class:`~lmj_trainer.task.port.Task`."""
        self._labels, self._smoothing = list(labels), smoothing

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """``output``: logits ``[b, t, labels]``; ``labels``: ids ``[b, t]``, int64, ``NO_LABEL`` where there is none."""
        return F.cross_entropy(output.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, label_smoothing=self._smoothing)

    def samples(self, labels: Tensor) -> int:
        """The words."""
        return int((labels != NO_LABEL).sum())

    def counts(self, payload: Any = None) -> WordCounts:
        """As of :class:`~lmj_trainer.task.port.Objective`."""
        size = len(self._labels)
        empty = {"losses": [], "confusion": [[0] * size for _ in range(size)]}
        return WordCounts(self._labels, **(empty if payload is None else payload))

    def evaluation(self, counts: WordCounts, split: str, step: int) -> Evaluation:
        """``samples`` are words. F1: of entities, as one kind, where the labels are tags; else as of a text's labels."""
        result = evaluate_counts(counts.confusion, in_order(counts.losses), self._labels, split, step)
        if not are_tags(self._labels):
            return result
        return result.model_copy(update={"f1": 2 * counts.hits / counts.both if counts.both else 0.0})
