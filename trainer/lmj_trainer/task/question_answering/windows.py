"""Questions and texts as windows of tokens, and what an evaluation has to know of the rows beside these."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_trainer.data.split import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lmj_trainer.task.question_answering.answers import Answer

NOWHERE = 0
"""The token that a window without the answer has in its place: the first one, which is special."""


def overlap_of(max_length: int) -> int:
    """Tokens of a text that a window has in common with the one before: a third of its length."""
    return max_length // 3


def window(spans: NDArray[np.int64], first: int, stop: int, answer: Answer | None) -> list[int]:
    """The first and the last token of ``answer``, and where the text begins and ends in the window: its label.

    ``spans``: the characters of each token, ``[tokens, 2]``; ``first`` to ``stop`` (exclusive) are of the text.
    """
    begins, ends = spans[first:stop, 0], spans[first:stop, 1]
    if answer is None or stop == first or begins[0] > answer.begin or ends[-1] < answer.end:
        return [NOWHERE, NOWHERE, first, stop]
    begin = int(np.searchsorted(begins, answer.begin, side="right")) - 1
    end = int(np.searchsorted(ends, answer.end, side="left"))
    return [first + begin, first + max(begin, end), first, stop]


class Known:
    """The texts of a split's rows, what answers their questions, and which characters each token is of."""

    def __init__(self, split: Split) -> None:
        """``split``: as :func:`joined` made it."""
        self._split, self._beside = split, split.beside

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row that each window is of."""
        return self._beside["rows"]

    @property
    def may_lack_answers(self) -> bool:
        """Whether some question has none."""
        return bool(self._beside["unanswered"][0])

    def text(self, number: int, first: int, last: int) -> str:
        """What the tokens ``first`` to ``last`` of window ``number`` are in its row's text."""
        spans = self._beside["spans"][int(self._split.offsets[number]) :]
        context: str = self._row(int(self.rows[number]))[0]
        return context[int(spans[first][0]) : int(spans[last][1])]

    def answers(self, row: int) -> list[str]:
        """Those of the question of ``row``."""
        found: list[str] = self._row(row)[1]
        return found

    def _row(self, row: int) -> Any:
        ends = self._beside["text_ends"]
        return json.loads(self._beside["texts"][int(ends[row]) : int(ends[row + 1])].tobytes())


def joined(
    tokens: Sequence[NDArray[np.int32]],
    types: Sequence[NDArray[np.uint8]] | None,
    labels: Sequence[list[int]],
    spans: Sequence[NDArray[np.int64]],
    rows: Sequence[int],
    texts: Sequence[tuple[str, Sequence[Answer]]],
    max_length: int,
) -> Split:
    """The windows as a split. ``rows``: the row of each; ``texts``: the text and the answers of each row."""
    each = [json.dumps([context, [answer.text for answer in answers]]).encode() for context, answers in texts]
    beside: dict[str, NDArray[Any]] = {
        "rows": np.array(rows, np.int64),
        "spans": np.concatenate(spans).astype(np.int32),
        "texts": np.frombuffer(b"".join(each), np.uint8),
        "text_ends": np.cumsum([0, *map(len, each)], dtype=np.int64),
        "unanswered": np.array([any(not answers for _, answers in texts)]),
    }
    offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    kinds = None if types is None else np.concatenate(types)
    return Split(np.concatenate(tokens), kinds, offsets, np.array(labels, np.int64), max_length, beside)
