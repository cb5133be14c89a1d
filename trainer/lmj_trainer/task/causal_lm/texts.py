"""Texts as rows of tokens, and which of these are learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_trainer.data.split import NO_LABEL, Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Ends:
    """What stands around a text."""

    begin: list[int]
    """Tokens before it: Llama's ``<s>``, BERT's ``[CLS]``."""
    end: int
    """The token that says that it is over."""

    @classmethod
    def of(cls, tokenizer: Any) -> Ends:
        """As ``tokenizer`` has them. Raises ValueError: it has no token for the end."""
        end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        if end is None:
            raise ValueError("no token ends a text (eos_token)")
        begin = {tokenizer.bos_token_id, tokenizer.cls_token_id} - {None, end}
        return cls([token for token in tokenizer("")["input_ids"] if token in begin], int(end))


Row = tuple[list[int], list[bool]]
"""Tokens, and which of them are learned."""


def row(ends: Ends, prompt: Sequence[int], answer: Sequence[int]) -> Row:
    """Of ``prompt``, which is not learned, and ``answer`` with its end."""
    tokens = [*ends.begin, *prompt, *answer, ends.end]
    given = len(ends.begin) + len(prompt)
    return tokens, [False] * given + [True] * (len(tokens) - given)


def cut(whole: Row, room: int) -> Row | None:
    """The first ``room`` tokens of ``whole``; None: nothing of them is learned."""
    tokens, learned = whole[0][:room], whole[1][:room]
    # The first token of a row follows none, so it is never learned.
    return (tokens, learned) if any(learned[1:]) else None


def joined(rows: Sequence[Row], max_length: int) -> Split:
    """``rows`` as they are."""
    tokens = np.array([token for row, _ in rows for token in row], dtype=np.int32)
    learned = np.array([each for _, row in rows for each in row], dtype=bool)
    offsets = np.cumsum([0, *(len(row) for row, _ in rows)], dtype=np.int64)
    return Split(tokens, None, offsets, np.where(learned, tokens, NO_LABEL).astype(np.int64), max_length)


def following(split: Split, rows: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """``[b, width]``: the token that follows each, ``NO_LABEL`` where none is learned."""
    targets = np.full((len(rows), width), NO_LABEL, np.int64)
    for place, number in enumerate(rows):
        begin, end = split.offsets[number], split.offsets[number + 1]
        targets[place, : end - begin - 1] = split.labels[begin + 1 : end]
    return targets
