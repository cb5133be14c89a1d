"""Cross entropy of the next token; accuracy, and perplexity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F  # noqa: N812 - its usual name

from lmj_api.protocol import Evaluation
from lmj_trainer.data.split import NO_LABEL
from lmj_trainer.metrics import in_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass
class TokenCounts:
    """Tokens that were predicted."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    """The number of each micro-batch, and the cross entropy of all its tokens, in float64."""
    tokens: int = 0
    hits: int = 0
    """Of which the likeliest was the right one."""

    def add(self, number: int, output: Tensor, labels: Tensor) -> None:
        """``output``: logits ``[b, t, vocabulary]``; ``labels``: the tokens that follow ``[b, t]``, ``NO_LABEL`` where none is learned."""
        total = 0.0
        # Row by row: all rows' logits in float64 would be several times the model.
        for logits, following in zip(output, labels, strict=True):
            learned = following != NO_LABEL
            chosen, true = logits[learned], following[learned]
            total += F.cross_entropy(chosen.double(), true, reduction="sum").item()
            self.tokens += len(true)
            self.hits += int((chosen.argmax(-1) == true).sum())
        self.losses.append((number, total))

    def merge(self, payload: Mapping[str, Any]) -> None:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        self.losses.extend(payload["losses"])
        self.tokens += payload["tokens"]
        self.hits += payload["hits"]

    def payload(self) -> dict[str, Any]:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        return vars(self)


class TokenObjective:
    """The mean cross entropy over tokens, as transformers has it for a batch."""

    def __init__(self, smoothing: float = 0.0) -> None:
        """``smoothing``: as of :class:`~lmj_trainer.task.port.Task`."""
        self._smoothing = smoothing

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """``output``: logits ``[b, t, vocabulary]``; ``labels``: the tokens that follow ``[b, t]``, ``NO_LABEL`` where none is learned."""
        return F.cross_entropy(output.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, label_smoothing=self._smoothing)

    def samples(self, labels: Tensor) -> int:
        """The tokens that are learned."""
        return int((labels != NO_LABEL).sum())

    def counts(self, payload: Any = None) -> TokenCounts:
        """As of :class:`~lmj_trainer.task.port.Objective`."""
        return TokenCounts() if payload is None else TokenCounts(**payload)

    def evaluation(self, counts: TokenCounts, split: str, step: int) -> Evaluation:
        """``samples`` are tokens."""
        if counts.tokens == 0:
            raise ValueError(f"no token of {split} was counted")
        loss = in_order(counts.losses) / counts.tokens
        perplexity = math.exp(loss) if loss < _LARGEST else math.inf
        return Evaluation(
            split=split, step=step, samples=counts.tokens, loss=loss, accuracy=counts.hits / counts.tokens, perplexity=perplexity
        )


_LARGEST = 700.0
"""Of a loss whose perplexity is a number: a little less than the logarithm of the largest float64."""
