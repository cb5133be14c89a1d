"""Texts end to end, in rows that are as long as they may be: no text is cut off, and nothing is padded but the last row."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np

from lmj_trainer.data.split import NO_LABEL, Split

WHOLE = sys.maxsize
"""Tokens of a text that is to be packed, at most: a long one becomes several rows."""


def packed(split: Split, most: int) -> Split:
    """The tokens of ``split``, whose tokens have labels, in rows of ``most``. A row in which nothing is learned is left out."""
    total = len(split.input_ids)
    offsets = np.array([*range(0, total, most), total], dtype=np.int64)
    # The first token of a row follows none.
    learns = np.array([bool((split.labels[a + 1 : b] != NO_LABEL).any()) for a, b in pairwise(offsets)], bool)
    keep = np.repeat(learns, np.diff(offsets))
    lengths = np.diff(offsets)[learns]
    return Split(split.input_ids[keep], None, np.cumsum([0, *lengths], dtype=np.int64), split.labels[keep], most)
