"""The end of a Parquet file, where it says what its row groups are. What it claims is believed as far as the file itself goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_128

from lmj_trainer.data.files import class_names, rows_of_table
from lmj_trainer.data.rows import columns, require_columns
from lmj_trainer.errors import UserError
from lmj_trainer.wording import listed, one_line

if TYPE_CHECKING:
    from lmj_trainer.store.port import Ref

MOST_BYTES = 16 << 20
"""Of a footer: some hundred thousand row groups of a few columns."""
_TAIL = 64 << 10
"""Bytes that are asked for at once: most footers are shorter."""
_END = 8
"""Bytes after a footer: its length, and the mark of the format."""
_MARK, _ENCRYPTED = b"PAR1", b"PARE"
_LEAST_OF_ITEM = 8
"""Bytes of an item of a footer's lists, at least: so many items as it has no room for are not made room for."""
_PADDING = 100
"""Bytes after a column of some old writers, whose lengths lack them."""


@dataclass(frozen=True)
class Group:
    """What a row group claims to be."""

    rows: int
    bytes: int
    """Of the columns that are read, with or without compression, whichever is more."""
    ranges: tuple[tuple[int, int], ...]
    """Where in the file these columns are: first byte and number of bytes, in order, none touches another."""


@dataclass(frozen=True, eq=False)
class Footer:
    """A file's, which was looked through."""

    metadata: Any
    """pyarrow's."""
    digest: str
    """XXH3-128 of its bytes. It has the sizes, and as a rule the statistics, of all that is in the file."""
    groups: tuple[Group, ...]
    kinds: tuple[str, ...]
    """What the text columns hold, by the types that they are read as."""
    names: tuple[str, ...] | None
    """Label names that the file has for the numbers of its label column."""


def read_footer(ref: Ref, size: int, text: Sequence[str], label: str | None, called: str) -> Footer:
    """That of the file ``ref`` of ``size`` bytes, for the columns ``text`` and ``label``. ``called``: the file, for people.

    Raises UserError: it is broken, or lacks a column. OSError: the store does not give it.
    """
    content = _content(ref, size, called)
    try:
        metadata = _parsed(content)
        schema = metadata.schema.to_arrow_schema()
        wanted = columns(text, label)
        require_columns(wanted, schema.names, called)
        for name in wanted:
            if schema.names.count(name) > 1:
                raise UserError(f"{called} has two columns {name!r}; rename one (columns: {listed(schema.names)})")
        names = class_names(schema.metadata, label)
        kinds = _kinds(schema, text, label, called)
        groups = _groups(metadata, wanted, size, size - len(content), called)
    except UserError:
        raise
    except Exception as error:  # of pyarrow, whose errors have many classes, about bytes that are anybody's
        raise UserError(f"{called} cannot be read: {one_line(error)}") from error
    return Footer(metadata, xxh3_128(content).hexdigest(), groups, kinds, None if names is None else tuple(names))


def _content(ref: Ref, size: int, called: str) -> bytes:
    """The footer with its end. Raises UserError, OSError."""
    if size < len(_MARK) + _END:
        raise UserError(f"{called} is no Parquet file: it has {size} bytes")
    tail = _exactly(ref, max(0, size - _TAIL), min(size, _TAIL))
    if tail[-len(_MARK) :] == _ENCRYPTED:
        raise UserError(f"{called} is encrypted: write it without")
    if tail[-len(_MARK) :] != _MARK:
        raise UserError(f"{called} is no Parquet file, or not all of it: it does not end as one")
    length = int.from_bytes(tail[-_END : -len(_MARK)], "little") + _END
    if length > MOST_BYTES:
        raise UserError(
            f"{called} says that its footer has {length / 1e6:.0f} MB, and {MOST_BYTES / 1e6:.0f} are read: write larger row groups, or "
            "several files"
        )
    if length > size - len(_MARK):
        raise UserError(f"{called} is no Parquet file, or not all of it: its footer is longer than the file")
    return tail[-length:] if length <= len(tail) else _exactly(ref, size - length, length)


def _exactly(ref: Ref, start: int, count: int) -> bytes:
    found = ref.get(start, count)
    if len(found) != count:
        raise OSError(f"{ref} ends at byte {start + len(found)}, where more was to be read")
    return found


def _parsed(content: bytes) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    items = max(1000, len(content) // _LEAST_OF_ITEM)
    with parquet.ParquetFile(
        pa.BufferReader(content), thrift_string_size_limit=len(content), thrift_container_size_limit=items
    ) as file:
        return file.metadata


def _kinds(schema: Any, text: Sequence[str], label: str | None, called: str) -> tuple[str, ...]:
    """The types of the columns ``text`` once they are read. Raises UserError for one that holds no text."""
    import pyarrow as pa

    nothing = pa.schema([schema.field(name) for name in columns(text, label)]).empty_table()
    return tuple(str(column.type) for column in rows_of_table(nothing, text, label, None, called).texts)


def _groups(metadata: Any, wanted: Sequence[str], size: int, end: int, called: str) -> tuple[Group, ...]:
    """The row groups, of which ``wanted`` columns are read, of a file of ``size`` bytes whose footer begins at ``end``. Raises UserError: a
    claim cannot be.
    """
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    leaves = [n for n, path in enumerate(paths) if any(path == name or path.startswith(f"{name}.") for name in wanted)]
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        ranges, cost = list[tuple[int, int]](), 0
        for leaf in leaves if group.num_rows else ():
            chunk = group.column(leaf)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            length, whole = chunk.total_compressed_size, chunk.total_uncompressed_size
            if chunk.file_path or start < len(_MARK) or length < 0 or start + length > end or whole < 0:
                raise UserError(
                    f"{called} is broken: row group {number} says that column {one_line(paths[leaf], 60)} is where the file has no rows"
                )
            ranges.append((start, min(length + _PADDING, size - start)))
            cost += max(length, whole)
        if group.num_rows < 0:
            raise UserError(f"{called} is broken: row group {number} says that it has {group.num_rows} rows")
        found.append(Group(group.num_rows, cost, _joined(ranges)))
    if sum(group.rows for group in found) != metadata.num_rows:
        raise UserError(f"{called} is broken: its row groups have not as many rows as it says")
    return tuple(found)


def _joined(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """``ranges`` in order; those that touch or overlap are one, so that no byte is read twice."""
    joined = list[tuple[int, int]]()
    for start, length in sorted(ranges):
        if joined and start <= sum(joined[-1]):
            first, before = joined[-1]
            joined[-1] = first, max(before, start + length - first)
        else:
            joined.append((start, length))
    return tuple(joined)
