"""Words of rows and their labels, and which token stands for a word."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_trainer.data.messages import is_kind
from lmj_trainer.data.split import NO_LABEL
from lmj_trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lmj_trainer.data.rows import Rows


def words_of(value: Any) -> list[str]:
    """Those of a text, which are separated by white space, or of a list."""
    return value.split() if isinstance(value, str) else list(value or ())


def by_word(rows: Rows) -> Rows:
    """A row for each word of ``rows``, with its label and without a text. UserError: a row has other numbers of words and labels."""
    values: list[Any] = []
    counts = []
    for place, (words, labels) in enumerate(zip(rows.texts[0].to_pylist(), rows.labels, strict=True)):
        given = labels.split() if isinstance(labels, str) else labels if isinstance(labels, list) else [labels]
        count = len(words_of(words))
        if len(given) != count:
            raise UserError(f"{rows.where(place)} has {count} words and {len(given)} labels: give each word a label")
        values += given
        counts.append(count)
    return rows.spread(values, np.repeat(np.arange(len(rows)), counts))


def in_words(rows: Rows, words: Sequence[Sequence[str]]) -> Rows:
    """``rows`` with each text as the list of its ``words``."""
    import pyarrow as pa

    return replace(rows, texts=(pa.chunked_array([pa.array(words, pa.large_list(pa.large_string()))]),))


def check_words(rows: Rows) -> None:
    """UserError: more than one column of words, or a row without any."""
    if len(rows.columns) != 1:
        raise UserError(f"dataset.text names {len(rows.columns)} columns: a task that labels words takes one column of them")
    if is_kind(rows.texts[0].type):
        raise UserError(f"column {rows.columns[0]!r} of {rows.origin} holds conversations, not words")
    for place, value in enumerate(rows.texts[0].to_pylist()):
        words = words_of(value)
        if not words or not all(word and word.strip() for word in words):
            what = "no words" if not words else "an empty word"
            raise UserError(f"{rows.where(place)} has {what} in column {rows.columns[0]!r}: remove the row or fill it in")


def token_labels(words: Sequence[str], ids: NDArray[np.int64], spans: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """The labels ``[tokens]`` of a text of ``words`` with a space between them: the first token of each word has its id.

    ``spans``: where each token begins and ends in the text, in characters; a special one is empty.
    """
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    labels = np.full(len(spans), NO_LABEL, np.int64)
    before = -1
    for place, (begin, end) in enumerate(spans):
        if end > begin:
            # By its last character: in some families the space before a word is part of its token.
            word = bisect_right(starts, end - 1) - 1
            if word != before:
                labels[place] = ids[word]
            before = word
    return labels
