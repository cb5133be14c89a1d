"""A bucket of S3 or of Google Cloud Storage, a container of Azure Blob Storage: the keys below a prefix of it.

There are no folders: one is there as long as a file lies in it. An object is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError

from lmj_trainer.store.answers import code, is_silent, reason, refuses, refuses_keys
from lmj_trainer.store.port import Entry, Piece, Ref, RefusedError, RenewableError, aside_of
from lmj_trainer.store.ranges import ahead, copied, scatter

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

    from lmj_trainer.store.renewed import Renewed

    Bucket = S3Store | AzureStore | GCSStore

CHUNK = 8 << 20
"""Bytes of a part of a large file: S3 wants 5 MiB at least, and takes ten thousand of them; Azure takes fifty thousand."""
PARTS_AT_ONCE = 4
"""Parts under way at a time: so many are in memory."""
RETRY_SECONDS = 60
"""How long a request is tried again, by a server that is busy or not there."""
REQUEST_SECONDS = 30
"""How long one request may take."""
_MARK = "lmjupload"
"""Name of what is kept beside a file's content: which call wrote it."""
_PUT_TOGETHER = {"InvalidBlockList", "NoSuchUpload"}
"""What a server says to the request that makes a file of parts, when it has done that before, and its answer was lost."""
T = TypeVar("T")


CLIENT: ClientConfig = {"timeout": timedelta(seconds=REQUEST_SECONDS)}
RETRY: RetryConfig = {
    "max_retries": 10_000,  # it is the time that ends them
    "retry_timeout": timedelta(seconds=RETRY_SECONDS),
    "backoff": {"base": 2, "init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5)},
}


class ObjectStore:
    """It keeps nothing between two calls, and threads may share it."""

    def __init__(self, place: str, bucket: Renewed[Bucket]) -> None:
        """``place``: its URI. ``bucket``: what is there, with :data:`CLIENT` and :data:`RETRY`."""
        self._place, self._bucket = place, bucket

    def describe(self, key: str) -> str:
        """Its URI."""
        return f"{self._place}/{key}" if key else self._place

    def put(self, key: str, pieces: Iterable[Piece]) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`: in parts, of which the last request makes an object. What the Secret has is asked for
        with each part; what is refused in the middle is put again by the caller, who has the content.
        """
        parts, mark = _parts(pieces), _new_mark()
        some = list(itertools.islice(parts, 2))
        if len(some) < 2:
            content = some[0] if some else b""
            self._ask(key, lambda bucket: obstore.put(bucket, key, content, attributes=mark, use_multipart=False))
            return
        with self._asking(key):
            bucket = self._bucket.now
            try:
                whole = itertools.chain(some, parts)
                obstore.put(bucket, key, whole, attributes=mark, chunk_size=CHUNK, max_concurrency=PARTS_AT_ONCE)
            except (BaseError, FileNotFoundError) as error:
                if code(error) not in _PUT_TOGETHER or not _has(bucket, key, mark):
                    raise

    def create(self, key: str, content: bytes) -> bool:
        """As of :class:`~lmj_trainer.store.port.Store`. The server decides who is first; a request that is made again, because its answer was
        lost, finds the file of the first.
        """
        mark = _new_mark()

        def create(bucket: Bucket) -> bool:
            try:
                obstore.put(bucket, key, content, attributes=mark, mode="create")
            except AlreadyExistsError:
                return _has(bucket, key, mark)
            return True

        return self._ask(key, create)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """As of :class:`~lmj_trainer.store.port.Store`. Its size is asked for only where a range is refused, as one at its end is."""

        def get(bucket: Bucket) -> bytes:
            try:
                if size is None:
                    return bytes(obstore.get(bucket, key, options={"range": {"offset": start}} if start else None).bytes())
                return bytes(obstore.get_range(bucket, key, start=start, length=size)) if size else b""
            except BaseError as error:
                if refuses_keys(error) or start < int(obstore.head(bucket, key)["size"]):
                    raise
                return b""

        return self._ask(key, get)

    def fill(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`: in parts, several at a time."""
        scatter(self._pieces(key, start, start + sum(map(len, buffers))), buffers)

    def entry(self, key: str) -> Entry:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        found = self._ask(key, lambda bucket: _head(bucket, key))
        return Entry(int(found["size"]), found["last_modified"].timestamp(), found.get("e_tag") or "")

    def files(self, key: str) -> list[str]:
        """As of :class:`~lmj_trainer.store.port.Store`, sorted."""
        return self._listed(key)[0]

    def folders(self, key: str) -> list[str]:
        """As of :class:`~lmj_trainer.store.port.Store`, sorted."""
        return self._listed(key)[1]

    def is_folder(self, key: str) -> bool:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        try:
            return any(self._listed(key))
        except FileNotFoundError:
            return False

    def delete(self, key: str) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        with contextlib.suppress(FileNotFoundError):
            self._ask(key, lambda bucket: obstore.delete(bucket, key))

    def remove(self, key: str) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`: there is nothing to be removed."""
        if self.is_folder(key):
            raise OSError(f"{self.describe(key)} is not empty")

    def tidy(self, key: str) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`: what is not finished is no object; the bucket's lifecycle removes its parts."""

    def withdraw(self, key: str, name: str) -> str | None:
        """As of :class:`~lmj_trainer.store.port.Store`: the files are moved aside one by one, so what completes the folder late has no parts.

        A crash in between leaves files in both: the next call moves the rest. Where the file ``name`` comes while files are moved, they
        are moved back; who wrote it does not count that checkpoint before it knows that its view is not over, see
        :mod:`lmj_trainer.checkpoint.fence`.
        """
        last = Ref(self, key) / name
        aside = aside_of(key)
        if last.exists():
            return None
        self._move(key, aside)
        if last.exists():
            self._move(aside, key)
            return None
        return aside

    def local(self, key: str) -> contextlib.AbstractContextManager[Path]:
        """As of :class:`~lmj_trainer.store.port.Store`: a copy, which goes when nobody has it open any more."""
        return copied(key, lambda: self._pieces(key, 0, self.entry(key).size))

    def _pieces(self, key: str, start: int, end: int) -> Iterator[memoryview]:
        """What is there from ``start`` to ``end``, a request for each part: each has its own deadline, however long all take."""

        def fetch(at: int) -> memoryview:
            length = min(CHUNK, end - at)
            piece = memoryview(self._ask(key, lambda bucket: obstore.get_range(bucket, key, start=at, length=length)))
            if len(piece) != length:
                raise OSError(f"{self.describe(key)} ends at byte {at + len(piece)}, where more was to be read")
            return piece

        return ahead(fetch, range(start, end, CHUNK), PARTS_AT_ONCE)

    def _move(self, source: str, target: str) -> None:
        """The last in order first: names that begin with a dot say whose the rest is, and are there as long as any of it is."""
        with contextlib.suppress(FileNotFoundError):
            for name in reversed(self.files(source)):
                here, there = f"{source}/{name}", f"{target}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    self._ask(here, functools.partial(_rename, here=here, there=there))

    def _listed(self, key: str) -> tuple[list[str], list[str]]:
        def listed(bucket: Bucket) -> tuple[list[str], list[str]]:
            found = obstore.list_with_delimiter(bucket, key or None)
            own = f"{key}/" if key else ""
            # A console's mark of a folder has no name in it.
            files = sorted(name for each in found["objects"] if (name := str(each["path"]).removeprefix(own)))
            return files, sorted(str(each).rstrip("/").removeprefix(own) for each in found["common_prefixes"])

        files, folders = self._ask(key, listed)
        if key and not files and not folders:
            raise FileNotFoundError(self.describe(key))
        return files, folders

    def _ask(self, key: str, do: Callable[[Bucket], T]) -> T:
        """What ``do`` answers, which may be done again when it is refused. Errors of the library as those of files."""
        with self._asking(key):
            return self._bucket.ask(do, refuses_keys)

    @contextlib.contextmanager
    def _asking(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, BaseError) as error:
            said, secret = f"{self.describe(key)}: {reason(error)}", self._bucket.secret
            if refuses_keys(error) and secret is not None:
                raise RenewableError.of(said, secret) from None
            if refuses(error):
                raise RefusedError(said) from None
            raise FileNotFoundError(self.describe(key)) if isinstance(error, FileNotFoundError) else OSError(said) from None
        except BaseException as error:
            # A panic of the library is no Exception: a thread that writes a checkpoint would end without a word.
            if type(error).__module__ != "pyo3_runtime":
                raise
            raise OSError(f"{self.describe(key)}: {reason(error)}") from None


def _head(bucket: Bucket, key: str) -> ObjectMeta:
    try:
        return obstore.head(bucket, key)
    except BaseError as error:
        if is_silent(error):
            obstore.get(bucket, key)  # it is refused too, and why: the content is not asked for
        raise


def _rename(bucket: Bucket, here: str, there: str) -> None:
    obstore.rename(bucket, here, there)


def _has(bucket: Bucket, key: str, mark: Mapping[str, str]) -> bool:
    """Whether the file is of the call that gave it ``mark``."""
    try:
        found = obstore.get(bucket, key, options={"head": True}).attributes
    except FileNotFoundError:
        return False
    return mark.items() <= found.items()


def _new_mark() -> dict[str, str]:
    """By which a call knows the file that it wrote. Azure takes letters and digits alone in a name."""
    return {_MARK: secrets.token_hex(16)}


def _parts(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Of what may be whole gigabytes: the library holds as much of a piece as there is."""
    for piece in pieces:
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), CHUNK):
            yield bytes(view[start : start + CHUNK])
