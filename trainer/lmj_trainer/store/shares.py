"""A share of Azure Files, by its REST interface: the keys below a folder of it.

Folders are real there. A file is made with its size first and gets its content in ranges, so it is written beside its name, and has its name
by a rename, which the server does at once. Names in capitals and in small letters are the same there: ours are in small ones.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from azure.core.exceptions import AzureError

from lmj_trainer.store.partial import Partial
from lmj_trainer.store.patience import ABSENT, REQUEST_SECONDS, AnswerTornError, code_of, persistently, told_as_of_files
from lmj_trainer.store.port import Entry, NotAFileError, Piece, Ref, aside_of
from lmj_trainer.store.ranges import ahead, copied, in_chunks, scatter
from lmj_trainer.store.unfinished import STALE_SECONDS, is_unfinished

if TYPE_CHECKING:
    from azure.storage.fileshare import ShareClient, ShareDirectoryClient, ShareFileClient

    from lmj_trainer.store.renewed import Renewed

CHUNK = 4 << 20
"""Bytes of a range: the server takes no more."""
RANGES_AT_ONCE = 4
"""Ranges under way at a time: so many are in memory."""
PAGE = 1000
"""Names of a listing."""
_SIZE = re.compile(r"/(\d+)$")
T = TypeVar("T")


class ShareStore:
    """It keeps nothing between two calls, and threads may share it."""

    def __init__(self, place: str, share: Renewed[ShareClient], folder: str) -> None:
        """``place``: its URI. ``share``: what is there, which makes no request again by itself. ``folder``: in the share; ``""``: all of it."""
        self._place, self._share, self._folder = place, share, folder

    def describe(self, key: str) -> str:
        """Its URI."""
        return f"{self._place}/{key}" if key else self._place

    def put(self, key: str, pieces: Iterable[Piece]) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`: beside its name first, then renamed."""
        with self._asking(key), self._written(key, pieces) as partial:
            partial.rename(replace=True)

    def create(self, key: str, content: bytes) -> bool:
        """As of :class:`~lmj_trainer.store.port.Store`. The server decides who is first: it renames nothing to a name that is there."""
        with self._asking(key):
            if self._there(lambda: self._file(key).get_file_properties(timeout=REQUEST_SECONDS)) is not None:
                return False
            with self._written(key, [content]) as partial:
                return partial.rename(replace=False)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """As of :class:`~lmj_trainer.store.port.Store`. The first range says how much there is."""
        if size == 0:
            return b""
        with self._asking(key):
            first, total = self._range(key, start, CHUNK if size is None else min(size, CHUNK))
        end = total if size is None else min(start + size, total)
        return b"".join([first, *self._pieces(key, start + len(first), end)])

    def fill(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`: in ranges, several at a time."""
        scatter(self._pieces(key, start, start + sum(map(len, buffers))), buffers)

    def entry(self, key: str) -> Entry:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        with self._asking(key):
            try:
                found = persistently(self._share, lambda: self._file(key).get_file_properties(timeout=REQUEST_SECONDS))
            except AzureError as error:
                if code_of(error) == "ResourceTypeMismatch":
                    raise NotAFileError(self.describe(key)) from None
                raise
        return Entry(int(found.size), found.last_modified.timestamp())

    def files(self, key: str) -> list[str]:
        """As of :class:`~lmj_trainer.store.port.Store`, sorted; what is being written is none yet."""
        return sorted(name for name, is_folder in self._listed(key) if not is_folder and not is_unfinished(name))

    def folders(self, key: str) -> list[str]:
        """As of :class:`~lmj_trainer.store.port.Store`, sorted."""
        return sorted(name for name, is_folder in self._listed(key) if is_folder)

    def is_folder(self, key: str) -> bool:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        with self._asking(key):
            return self._there(lambda: self._directory(key).get_directory_properties(timeout=REQUEST_SECONDS)) is not None

    def delete(self, key: str) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        with self._asking(key):
            self._there(lambda: self._file(key).delete_file(timeout=REQUEST_SECONDS))

    def remove(self, key: str) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`. What a writer that died has left in it unseen goes with it; one that is alive finds that
        its folder is gone.
        """
        for again in (True, False):
            with self._asking(key):
                try:
                    self._there(lambda: self._directory(key).delete_directory(timeout=REQUEST_SECONDS))
                except AzureError as error:
                    if code_of(error) != "DirectoryNotEmpty":
                        raise
                else:
                    return
            names = [name for name, _ in self._listed(key)]
            if not again or not all(map(is_unfinished, names)):
                raise OSError(f"{self.describe(key)} is not empty")
            for name in names:
                self.delete(f"{key}/{name}")

    def tidy(self, key: str) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        with contextlib.suppress(FileNotFoundError):
            for name in [name for name, is_folder in self._listed(key) if not is_folder and is_unfinished(name)]:
                if self.entry(f"{key}/{name}" if key else name).time < time.time() - STALE_SECONDS:
                    self.delete(f"{key}/{name}" if key else name)

    def withdraw(self, key: str, name: str) -> str | None:
        """As of :class:`~lmj_trainer.store.port.Store`: the folder is moved aside, so what is written to its old name completes nothing.

        Where the file ``name`` came in between, it is moved back; who wrote it does not count that checkpoint before it knows that its view
        is not over, see :mod:`lmj_trainer.checkpoint.fence`.
        """
        aside = aside_of(key)
        if (Ref(self, key) / name).exists():
            return None
        self._move(key, aside)
        if (Ref(self, aside) / name).exists():
            self._move(aside, key)
            return None
        return aside

    def local(self, key: str) -> contextlib.AbstractContextManager[Path]:
        """As of :class:`~lmj_trainer.store.port.Store`: a copy, which goes when nobody has it open any more."""
        return copied(key, lambda: self._pieces(key, 0, self.entry(key).size))

    def _path(self, key: str) -> str:
        """In the share."""
        return "/".join(part for part in (self._folder, key) if part)

    def _file(self, key: str) -> ShareFileClient:
        return self._share.now.get_file_client(self._path(key))

    def _directory(self, key: str) -> ShareDirectoryClient:
        return self._share.now.get_directory_client(self._path(key))

    def _asking(self, key: str) -> contextlib.AbstractContextManager[None]:
        return told_as_of_files(self.describe(key), self._share.secret)

    def _there(self, ask: Callable[[], T]) -> T | None:
        """What ``ask`` answers; None: there is nothing of that kind under that name. Raises AzureError."""
        try:
            return persistently(self._share, ask)
        except AzureError as error:
            if code_of(error) not in ABSENT | {"ResourceTypeMismatch"}:
                raise
            return None

    @contextlib.contextmanager
    def _written(self, key: str, pieces: Iterable[Piece]) -> Iterator[Partial]:
        """The content beside its name, which is gone on leaving if it was not renamed."""
        parts = in_chunks(pieces, CHUNK)
        some = list(itertools.islice(parts, 2))
        partial = Partial(self._share, self._path(key))
        try:
            if len(some) < 2:
                partial.begin(len(some[0]) if some else 0)
                for part in some:
                    partial.write((0, part))
            else:
                partial.begin(0)
                for _ in ahead(partial.write, partial.placed(itertools.chain(some, parts)), RANGES_AT_ONCE):
                    pass
                partial.end()
            yield partial
        finally:
            partial.clear()

    def _range(self, key: str, start: int, length: int) -> tuple[bytes, int]:
        """Up to ``length`` bytes from ``start`` on, and how many the file has; none behind its end. Raises AzureError."""

        def ask() -> tuple[bytes, int]:
            found = self._file(key).download_file(offset=start, length=length, timeout=REQUEST_SECONDS)
            content = found.readall()
            size = _SIZE.search(str(found.properties.content_range))
            total = int(size[1]) if size is not None else -1
            if len(content) != min(length, total - start):
                raise AnswerTornError(f"{len(content)} bytes of an answer came, and no more")
            return content, total

        try:
            return persistently(self._share, ask)
        except AzureError as error:
            if code_of(error) != "InvalidRange":
                raise
            return b"", 0

    def _pieces(self, key: str, start: int, end: int) -> Iterator[memoryview]:
        """What is there from ``start`` to ``end``, a request for each range: each has its own deadline, however long all take."""

        def fetch(at: int) -> memoryview:
            length = min(CHUNK, end - at)
            with self._asking(key):
                piece = self._range(key, at, length)[0]
            if len(piece) != length:
                raise OSError(f"{self.describe(key)} ends at byte {at + len(piece)}, where more was to be read")
            return memoryview(piece)

        return ahead(fetch, range(start, end, CHUNK), RANGES_AT_ONCE)

    def _listed(self, key: str) -> Iterator[tuple[str, bool]]:
        """Names in the folder, and whether each is a folder."""
        token: str | None = None
        while token != "":
            with self._asking(key):
                names, token = persistently(self._share, functools.partial(self._page, key, token))
            yield from names

    def _page(self, key: str, after: str | None) -> tuple[list[tuple[str, bool]], str]:
        """One of a listing, and the mark of the next; ``""``: it is the last."""
        listing = self._directory(key).list_directories_and_files(results_per_page=PAGE, timeout=REQUEST_SECONDS)
        pages = listing.by_page(continuation_token=after)
        names = [(str(each.name), bool(each.is_directory)) for each in next(pages)]
        return names, str(getattr(pages, "continuation_token", None) or "")

    def _move(self, source: str, target: str) -> None:
        """By one request; where there is a folder ``target`` already, its files go there one by one: an earlier move was not finished, or a late
        writer made the folder again.
        """
        with self._asking(source):
            try:
                persistently(
                    self._share, lambda: self._directory(source).rename_directory(self._path(target), timeout=REQUEST_SECONDS)
                )
            except AzureError as error:
                if code_of(error) in ABSENT and self.is_folder(target):
                    return  # that answer was lost, or another moved it
                if code_of(error) != "ResourceAlreadyExists":
                    raise
            else:
                return
        # Names that begin with a dot last: they say whose the rest is.
        for name, _ in sorted(self._listed(source), reverse=True):
            with self._asking(f"{source}/{name}"):
                self._there(functools.partial(self._rename, f"{source}/{name}", f"{target}/{name}"))
        self.remove(source)

    def _rename(self, source: str, target: str) -> None:
        self._file(source).rename_file(self._path(target), overwrite=True, timeout=REQUEST_SECONDS)
