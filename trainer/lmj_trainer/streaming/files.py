"""The files of an index, open for reading, each as it was found at first."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmj_trainer.data.rows import columns
from lmj_trainer.errors import UserError
from lmj_trainer.store.port import NotAFileError
from lmj_trainer.streaming.footer import Footer, read_footer
from lmj_trainer.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmj_trainer.store.port import Entry, Ref
    from lmj_trainer.streaming.index import File, Index
    from lmj_trainer.streaming.source import Source

_OPEN = 4
"""Footers that are kept: one may have megabytes, and the row groups of a window are of many files."""
_BATCH = 256
"""Rows that are decoded at a time at most, before it is looked how much memory all of them take."""


@dataclass(frozen=True, eq=False)
class _Opened:
    ref: Ref
    entry: Entry
    footer: Footer


class Files:
    """Threads may share it: one reads at a time."""

    def __init__(self, source: Source, index: Index, text: Sequence[str], label: str | None) -> None:
        """``text``, ``label``: the columns that are read."""
        self._source, self._index, self._text, self._label = source, index, tuple(text), label
        self._opened: OrderedDict[int, _Opened] = OrderedDict()
        # A thread that storage kept for longer than anybody waited for it may come back while another reads.
        self._reading = threading.Lock()

    def called(self, number: int) -> str:
        """File ``number`` of the index, for people."""
        return self._source.called(self._index.files[number].name)

    def read(self, number: int, group: int, most: float) -> Any:
        """Row group ``group`` of file ``number``, as a table of pyarrow with the columns that are read, which takes at most ``most`` bytes.

        UserError: the file is gone, or another one than at first; it is broken, or takes more memory than it said. OSError: the store does not
        give it, or it was written meanwhile.
        """
        with self._reading:
            return self._read(number, group, most)

    def _read(self, number: int, group: int, most: float) -> Any:
        called = self.called(number)
        try:
            opened = self._open(number)
            parts = _Parts(opened.entry.size)
            for start, length in opened.footer.groups[group].ranges:
                part = bytearray(length)
                opened.ref.fill(start, [memoryview(part)])
                parts.add(start, part)
            now = opened.ref.entry()
        except FileNotFoundError as error:
            raise UserError(f"{called} is not there any more: put back what the run began with") from error
        except NotAFileError as error:
            raise _changed(called) from error
        except OSError:
            self._opened.pop(number, None)  # it may be another one by now, which is found when it is opened
            raise
        if now != opened.entry:
            # Another time alone may be of the same content, as of a volume that was restored: opened again, its footer says so.
            self._opened.pop(number)
            if not _is(self._index.files[number], now):
                raise _changed(called)
            raise OSError(f"{called} was written while it was read")
        return _decoded(parts, opened.footer, group, columns(self._text, self._label), most, called)

    def _open(self, number: int) -> _Opened:
        opened = self._opened.get(number)
        if opened is None:
            file, called = self._index.files[number], self.called(number)
            ref = self._source.file(file.name)
            entry = ref.entry()
            if not _is(file, entry):
                raise _changed(called)
            footer = read_footer(ref, entry.size, self._text, self._label, called)
            if footer.digest != file.footer:
                raise _changed(called)
            while len(self._opened) >= _OPEN:
                self._opened.popitem(last=False)
            opened = self._opened[number] = _Opened(ref, entry, footer)
        self._opened.move_to_end(number)
        return opened


def _is(file: File, entry: Entry) -> bool:
    """Whether ``entry`` may be of ``file``, as far as its store says. What has no tag there is told by its size and its footer: a volume may be
    restored, with other times.
    """
    return entry.size == file.size and (not file.tag or entry.tag == file.tag)


def _changed(called: str) -> UserError:
    return UserError(f"{called} is not what the run began with: put that back, or begin another run with another output.path")


def _decoded(parts: _Parts, footer: Footer, group: int, wanted: Sequence[str], most: float, called: str) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    where = f"row group {group} of {called}"
    claimed, found, size = footer.groups[group].rows, list[Any](), 0
    try:
        with parquet.ParquetFile(
            pa.PythonFile(parts, mode="r"), metadata=footer.metadata, pre_buffer=False, page_checksum_verification=True
        ) as file:
            # Each row may be as long as all that is in the file.
            at_once = max(1, min(_BATCH, int(most // max(1, footer.groups[group].bytes))))
            for batch in file.iter_batches(at_once, row_groups=[group], columns=list(wanted), use_threads=False):
                found.append(_plain(batch))
                size += found[-1].nbytes
                if size > most:
                    raise UserError(
                        f"{where} takes more memory than it says, and there is room for {most / 1e6:.1f} MB: "
                        "raise dataset.streaming.memoryMb, or lower dataset.streaming.rowGroups"
                    )
        table = pa.Table.from_batches(found)
    except UserError:
        raise
    except Exception as error:  # of pyarrow, whose errors have many classes, about bytes that are anybody's
        raise UserError(f"{where} cannot be read: {one_line(error)}") from error
    if table.num_rows != claimed:
        raise UserError(f"{where} has {table.num_rows} rows, and says that it has {claimed}: the file is broken")
    # In one piece each: rows of many would be looked for in each.
    return table.combine_chunks()


def _plain(batch: Any) -> Any:
    """``batch`` with the values of dictionaries (categories of pandas) in their place: each batch has all of one, whatever it uses."""
    import pyarrow as pa

    found = [each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in batch.columns]
    return pa.RecordBatch.from_arrays(found, names=batch.schema.names)


class _Parts(io.RawIOBase):
    """A file of which some parts are in memory, for pyarrow: what it reads elsewhere, no row group has."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0
        self._parts: list[tuple[int, bytearray]] = []

    def add(self, start: int, content: bytearray) -> None:
        """The bytes from ``start`` on."""
        self._parts.append((start, content))

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of a file."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """As of a file. ValueError: outside of what is here."""
        for start, content in self._parts:
            offset = self._at - start
            if offset >= 0 and 0 <= size <= len(content) - offset:
                self._at += size
                return bytes(memoryview(content)[offset : offset + size])
        raise ValueError(f"{size} bytes at {self._at} are of no column that is read")
