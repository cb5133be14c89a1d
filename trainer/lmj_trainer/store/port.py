"""The port of a store, and a reference to a place in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Piece = bytes | memoryview
"""A part of a file's content."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a store."""

    size: int
    """Bytes."""
    time: float
    """When it was written, seconds since the epoch, by the store's clock."""
    tag: str = ""
    """What the store calls this content (ETag), another for another content; ``""``: nothing, as file systems and shares."""


GONE = ".gone"
"""Behind the name of a folder that was withdrawn."""


def aside_of(key: str) -> str:
    """The key that a folder has after :meth:`Store.withdraw`."""
    folder, _, own = key.rpartition("/")
    return f"{folder}/" * bool(folder) + f".{own}{GONE}"


class NotAFileError(OSError):
    """Something else has the file's name: a link, a folder, a device. The text is its place."""


class RefusedError(OSError):
    """The store does not give it, however often it is asked: there is no such bucket, or no right to it. The text is one line."""


class RenewableError(RefusedError):
    """What requests are signed with is refused, and may be renewed while this process runs: in the job's Secret, which the text names."""

    @classmethod
    def of(cls, said: str, secret: str) -> RenewableError:
        """``said``: what was refused, and why. ``secret``: the name of the Secret."""
        return cls(f"{said.rstrip('.')}: renew the Secret {secret}")


class Store(Protocol):
    """Files by key: ``folder/name``; the key of the store's root is ``""``. All methods may raise OSError, and FileNotFoundError for a key that
    is not there. Those that write have made their work durable when they return, and after a crash at any point it is done or not.
    """

    def describe(self, key: str) -> str:
        """The place as people know it: a path, a URI."""

    def put(self, key: str, pieces: Iterable[Piece]) -> None:
        """Write the file, as a whole or not at all; one that is there is replaced. Folders are made as they are needed."""

    def create(self, key: str, content: bytes) -> bool:
        """Write the file if there is none; whether it was this call that did."""

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """The content, ``size`` bytes of it from ``start`` on (fewer at its end; None: all the rest)."""

    def fill(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Read as many bytes as ``buffers`` have, one after the other, from ``start`` on. The file ends before: OSError."""

    def entry(self, key: str) -> Entry:
        """What is known of the file. Raises NotAFileError."""

    def files(self, key: str) -> list[str]:
        """Names of what lies in the folder and is no folder itself."""

    def folders(self, key: str) -> list[str]:
        """Names of the folders in the folder; a link is none."""

    def is_folder(self, key: str) -> bool:
        """Whether it is a folder, and no link to one. A store that has no folders has those in which a file lies."""

    def delete(self, key: str) -> None:
        """Remove the file; one that is not there is no error."""

    def remove(self, key: str) -> None:
        """Remove the folder, which is empty; one that is not there is no error."""

    def tidy(self, key: str) -> None:
        """Remove from the folder, if it is there, what writers that died have left in it unfinished a day ago or earlier."""

    def withdraw(self, key: str, name: str) -> str | None:
        """Have nobody complete the folder by writing the file ``name`` into it. The key that the folder has from then on; None: the file is
        there already, and nothing was changed.
        """

    def local(self, key: str) -> AbstractContextManager[Path]:
        """The file as one of this machine, to be read. What was mapped of it may be used after the end of the context."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A place in a store: it takes the place of a path."""

    store: Store
    key: str = ""

    def __truediv__(self, name: str) -> Ref:
        """What has this name in the folder."""
        return Ref(self.store, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return self.store.describe(self.key)

    @property
    def name(self) -> str:
        """Its name in its folder."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Ref:
        """The folder that it is in."""
        return Ref(self.store, self.key.rpartition("/")[0])

    def put(self, pieces: Iterable[Piece]) -> None:
        """As of :class:`Store`."""
        self.store.put(self.key, pieces)

    def create(self, content: bytes = b"") -> bool:
        """As of :class:`Store`."""
        return self.store.create(self.key, content)

    def get(self, start: int = 0, size: int | None = None) -> bytes:
        """As of :class:`Store`."""
        return self.store.get(self.key, start, size)

    def fill(self, start: int, buffers: Sequence[memoryview]) -> None:
        """As of :class:`Store`."""
        self.store.fill(self.key, start, buffers)

    def entry(self) -> Entry:
        """As of :class:`Store`."""
        return self.store.entry(self.key)

    def exists(self) -> bool:
        """Whether the file is there; anything that has its name counts."""
        try:
            self.store.entry(self.key)
        except FileNotFoundError:
            return False
        except NotAFileError:
            return True
        return True

    def files(self) -> list[str]:
        """As of :class:`Store`."""
        return self.store.files(self.key)

    def folders(self) -> list[str]:
        """As of :class:`Store`."""
        return self.store.folders(self.key)

    def is_folder(self) -> bool:
        """As of :class:`Store`."""
        return self.store.is_folder(self.key)

    def delete(self) -> None:
        """As of :class:`Store`."""
        self.store.delete(self.key)

    def remove(self) -> None:
        """As of :class:`Store`."""
        self.store.remove(self.key)

    def tidy(self) -> None:
        """As of :class:`Store`."""
        self.store.tidy(self.key)

    def withdraw(self, name: str) -> Ref | None:
        """As of :class:`Store`."""
        key = self.store.withdraw(self.key, name)
        return None if key is None else Ref(self.store, key)

    def local(self) -> AbstractContextManager[Path]:
        """As of :class:`Store`."""
        return self.store.local(self.key)
