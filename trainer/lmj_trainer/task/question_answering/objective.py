"""Cross entropy of where an answer begins and ends; exact matches, and F1 of words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from lmj_api.protocol import Evaluation
from lmj_trainer.metrics import in_order
from lmj_trainer.task.question_answering.answers import exact, overlap
from lmj_trainer.task.question_answering.windows import NOWHERE, Known

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from lmj_trainer.data.split import Split

LONGEST = 30
"""Tokens of an answer, at most."""

Window = tuple[int, int, int, float, float]
"""Its number in the split; the first and the last token of the best answer in it, and how good that is; how good it is that there is none."""


def best(output: Tensor, labels: Tensor) -> Iterator[Window]:
    """Of each window. ``output``: ``[b, t, 2]``; ``labels``: ``[b, 5]``, see :class:`AnswerObjective`."""
    for scores, (_, _, first, stop, number) in zip(output.double(), labels.tolist(), strict=True):
        begins, ends = scores[first:stop].unbind(1)
        fits = torch.ones(stop - first, stop - first, dtype=torch.bool, device=scores.device).triu().tril(LONGEST - 1)
        sums = torch.where(fits, begins[:, None] + ends, -math.inf)
        begin, end = divmod(int(sums.argmax()), stop - first)
        yield number, first + begin, first + end, float(sums[begin, end]), float(scores[NOWHERE].sum())


def said(windows: Sequence[Window], known: Known, *, may_lack: bool) -> dict[int, str]:
    """The answer to the question of each row. ``may_lack``: it may be that there is none, which is said as an empty text."""
    found: dict[int, list[Window]] = {}
    for each in sorted(windows):
        found.setdefault(int(known.rows[each[0]]), []).append(each)
    answers = {}
    for row, of_row in found.items():
        number, first, last, score, _ = max(of_row, key=lambda each: each[3])
        lacks = may_lack and min(each[4] for each in of_row) > score
        answers[row] = "" if lacks else known.text(number, first, last)
    return answers


@dataclass
class AnswerCounts:
    """The best answer of each window."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    """The number of each micro-batch, and the sum over its windows of their losses, in float64."""
    windows: list[Window] = field(default_factory=list)

    def add(self, number: int, output: Tensor, labels: Tensor) -> None:
        """``output``: ``[b, t, 2]``; ``labels``: ``[b, 5]``, see :class:`AnswerObjective`."""
        self.losses.append((number, _loss(output.double(), labels, "sum").item()))
        self.windows.extend(best(output, labels))

    def merge(self, payload: Mapping[str, Any]) -> None:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        self.losses.extend(payload["losses"])
        self.windows.extend(tuple(each) for each in payload["windows"])

    def payload(self) -> dict[str, Any]:
        """As of :class:`~lmj_trainer.task.port.Counts`."""
        return vars(self)


class AnswerObjective:
    """As transformers has it. Output: scores ``[b, t, 2]`` of tokens as the first and the last one of the answer.

    Labels, int64 ``[b, 5]``: these two tokens (``NOWHERE`` where the window lacks the answer), the first one of the text and the one after
    its last, and the number of the window in its split.
    """

    def __init__(self, splits: Mapping[str, Split]) -> None:
        """``splits``: those that may be evaluated."""
        self._splits = splits

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """The mean of both cross entropies."""
        return _loss(output, labels, "mean")

    def samples(self, labels: Tensor) -> int:
        """The windows."""
        return len(labels)

    def counts(self, payload: Any = None) -> AnswerCounts:
        """As of :class:`~lmj_trainer.task.port.Objective`."""
        counts = AnswerCounts()
        if payload is not None:
            counts.merge(payload)
        return counts

    def evaluation(self, counts: AnswerCounts, split: str, step: int) -> Evaluation:
        """``samples`` are questions. Accuracy: of exact matches; F1: the mean over the questions of that of the answer's words."""
        if not counts.windows:
            raise ValueError(f"no window of {split} was counted")
        known = Known(self._splits[split])
        answers = said(counts.windows, known, may_lack=known.may_lack_answers)
        right = [(exact(text, known.answers(row)), overlap(text, known.answers(row))) for row, text in answers.items()]
        return Evaluation(
            split=split,
            step=step,
            samples=len(answers),
            loss=in_order(counts.losses) / len(counts.windows),
            accuracy=sum(match for match, _ in right) / len(right),
            f1=math.fsum(f1 for _, f1 in right) / len(right),
        )


def _loss(output: Tensor, labels: Tensor, reduction: str) -> Tensor:
    begins, ends = output.unbind(-1)
    return (
        F.cross_entropy(begins, labels[:, 0], reduction=reduction) + F.cross_entropy(ends, labels[:, 1], reduction=reduction)
    ) / 2
