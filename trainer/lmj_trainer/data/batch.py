"""Rows of a split as the padded arrays that a model reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmj_trainer.data.order import Indices
from lmj_trainer.data.split import Split

_MULTIPLE = 8
"""Lengths are rounded up to a multiple of this: fewer shapes, aligned rows."""


@dataclass(frozen=True, eq=False)
class Batch:
    """``b`` rows, padded to ``t`` tokens; int64, as a rule labels too."""

    input_ids: NDArray[np.int64]
    """``[b, t]``"""
    attention_mask: NDArray[np.int64]
    """``[b, t]``: 1 where there is a token, 0 where there is padding."""
    token_type_ids: NDArray[np.int64] | None
    """``[b, t]``, or None where the model reads none."""
    labels: NDArray[Any]
    """As the task has them: ``[b]`` or ``[b, t]``."""


Targets = Callable[[Split, Indices, int], NDArray[Any]]
"""The labels of a batch of rows that are padded to a width."""


def collate(split: Split, rows: Indices, pad_id: int, targets: Targets) -> Batch:
    """The batch of ``rows``, with ``targets`` as labels; ``t`` is their longest, rounded up to a multiple of 8 but not over the split's."""
    if len(rows) == 0:
        raise ValueError("a batch needs at least one row")
    lengths = split.offsets[rows + 1] - split.offsets[rows]
    width = min(-(-int(lengths.max()) // _MULTIPLE) * _MULTIPLE, split.max_length)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    types = None if split.token_type_ids is None else np.zeros((len(rows), width), dtype=np.int64)
    for place, row in enumerate(rows):
        tokens, kinds = split.row(int(row))
        ids[place, : len(tokens)] = tokens
        mask[place, : len(tokens)] = 1
        if types is not None and kinds is not None:
            types[place, : len(tokens)] = kinds
    return Batch(ids, mask, types, targets(split, rows, width))
