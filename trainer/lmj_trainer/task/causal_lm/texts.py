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


def row(ends: Ends, prompt: Sequence[int], answer: Sequence[int], room: int) -> tuple[list[int], int]:
    """The tokens of a row, at most ``room``, and how many of them are not learned: those before the first token of ``answer``."""
    tokens = [*ends.begin, *prompt, *answer, ends.end]
    # The first token of a row follows none, so it is never learned.
    return tokens[:room], len(ends.begin) + len(prompt)


def joined(rows: Sequence[tuple[list[int], int]], max_length: int) -> Split:
    """``rows`` as they are."""
    tokens = np.array([token for row, _ in rows for token in row], dtype=np.int32)
    labels = tokens.astype(np.int64)
    offsets = np.cumsum([0, *(len(row) for row, _ in rows)], dtype=np.int64)
    for begin, (row, given) in zip(offsets, rows, strict=False):
        labels[begin : begin + min(given, len(row))] = NO_LABEL
    return Split(tokens, None, offsets, labels, max_length)


def following(split: Split, rows: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """``[b, width]``: the token that follows each, ``NO_LABEL`` where none is learned."""
    targets = np.full((len(rows), width), NO_LABEL, np.int64)
    for place, number in enumerate(rows):
        begin, end = split.offsets[number], split.offsets[number + 1]
        targets[place, : end - begin - 1] = split.labels[begin + 1 : end]
    return targets
