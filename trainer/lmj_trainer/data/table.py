"""The rows of a split as they are: columns of any type, mapped from an Arrow file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmj_trainer.data.order import Indices
from lmj_trainer.data.rows import Rows


class Table:
    """Rows by their numbers from 0 on, each a mapping by column."""

    def __init__(self, table: Any) -> None:
        """``table``: of pyarrow."""
        self._table = table

    @classmethod
    def open(cls, path: Path) -> "Table":
        """What :func:`write_table` wrote to ``path``. OSError, ValueError (pyarrow's own): it cannot be read."""
        import pyarrow as pa

        with pa.memory_map(str(path)) as file:
            return cls(pa.ipc.open_file(file).read_all())

    @classmethod
    def of(cls, rows: Rows) -> "Table":
        """Those of ``rows``."""
        import pyarrow as pa

        return cls(pa.table(dict(zip(rows.columns, rows.texts, strict=True))))

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def rows(self, which: Indices | Sequence[int]) -> list[Mapping[str, Any]]:
        """Those at the places ``which``, in this order."""
        return list(self._table.take(np.asarray(which, dtype=np.int64)).to_pylist())

    def write(self, path: Path) -> None:
        """Into a file at ``path``."""
        import pyarrow as pa

        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, self._table.schema) as writer:
            # In one piece: rows of many would be looked for in each.
            writer.write_table(self._table.combine_chunks())
