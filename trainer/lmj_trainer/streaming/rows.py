"""Rows of row groups, as any other rows: with the file and the number there by which people find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_trainer.data.files import rows_of_table
from lmj_trainer.data.rows import Rows

if TYPE_CHECKING:
    from lmj_trainer.data.order import Indices
    from lmj_trainer.streaming.index import Index


def rows_of(index: Index, number: int, called: str, table: Any, text: Sequence[str], label: str | None, which: Indices) -> Rows:
    """Those at the places ``which`` of group ``number`` of ``index``, which ``table`` has. ``called``: its file, for people."""
    rows = rows_of_table(table.take(which), text, label, index.names, index.source)
    origins = np.empty(len(which), dtype=object)
    origins[:] = called
    return replace(rows, numbers=index.firsts[number] + which, origins=origins)


def joined(parts: Sequence[Rows]) -> Rows:
    """All of ``parts``, one after the other. They have the same columns."""
    import pyarrow as pa

    first = parts[0]
    if len(parts) == 1:
        return first
    texts = [
        pa.chunked_array([chunk for part in parts for chunk in part.texts[place].chunks], column.type)
        for place, column in enumerate(first.texts)
    ]
    origins = [part.origins for part in parts if part.origins is not None]
    return replace(
        first,
        texts=tuple(texts),
        labels=np.concatenate([part.labels for part in parts]),
        numbers=np.concatenate([part.numbers for part in parts]),
        origins=np.concatenate(origins) if origins else None,
    )
