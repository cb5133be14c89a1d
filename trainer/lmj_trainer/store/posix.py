"""A folder of a POSIX file system: of this machine, or of a volume that all ranks mount."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lmj_trainer.durable import atomically, sync_folder, write_all
from lmj_trainer.store.direct import write_pieces
from lmj_trainer.store.port import Entry, NotAFileError, Piece, Ref, aside_of
from lmj_trainer.store.unfinished import STALE_SECONDS, is_unfinished


class PosixStore:
    """Keys are paths below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def describe(self, key: str) -> str:
        """The path."""
        return str(self._path(key))

    def put(self, key: str, pieces: Iterable[Piece]) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`: beside its name first, synced, then renamed."""
        path = self._path(key)
        self._make(path.parent)
        with atomically(path) as partial:
            write_pieces(partial, pieces)

    def create(self, key: str, content: bytes) -> bool:
        """As of :class:`~lmj_trainer.store.port.Store`. A crash may leave a part of ``content``."""
        path = self._path(key)
        self._make(path.parent)
        try:
            with path.open("xb", buffering=0) as file:
                write_all(file, content)
                os.fsync(file.fileno())
        except FileExistsError:
            return False
        sync_folder(path.parent)
        return True

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        with self._path(key).open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(-1 if size is None else size)

    def fill(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        with self._path(key).open("rb", buffering=0) as file:
            file.seek(start)
            for buffer in buffers:
                left = buffer
                while left:
                    if not (count := file.readinto(left)):
                        raise OSError(f"{self.describe(key)} ends at byte {file.tell()}, where more was to be read")
                    left = left[count:]

    def entry(self, key: str) -> Entry:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        path = self._path(key)
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode):
            raise NotAFileError(str(path))
        return Entry(about.st_size, about.st_mtime)

    def files(self, key: str) -> list[str]:
        """As of :class:`~lmj_trainer.store.port.Store`, sorted."""
        with os.scandir(self._path(key)) as entries:
            return sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))

    def folders(self, key: str) -> list[str]:
        """As of :class:`~lmj_trainer.store.port.Store`, sorted."""
        with os.scandir(self._path(key)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def is_folder(self, key: str) -> bool:
        """As of :class:`~lmj_trainer.store.port.Store`. The root may be a link: the user chose it."""
        path = self._path(key)
        return path.is_dir() and (not key or not path.is_symlink())

    def delete(self, key: str) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            sync_folder(path.parent)

    def remove(self, key: str) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)
            sync_folder(path.parent)

    def tidy(self, key: str) -> None:
        """As of :class:`~lmj_trainer.store.port.Store`."""
        with contextlib.suppress(FileNotFoundError):
            for name in filter(is_unfinished, self.files(key)):
                path = self._path(key) / name
                if path.lstat().st_mtime < time.time() - STALE_SECONDS:
                    os.unlink(path)

    def withdraw(self, key: str, name: str) -> str | None:
        """As of :class:`~lmj_trainer.store.port.Store`: the folder is moved aside, so what is written to its old name completes nothing."""
        aside = aside_of(key)
        os.rename(self._path(key), self._path(aside))
        if (self._path(aside) / name).exists():
            # It was completed after all, a moment ago.
            os.rename(self._path(aside), self._path(key))
            return None
        return aside

    @contextlib.contextmanager
    def local(self, key: str) -> Iterator[Path]:
        """As of :class:`~lmj_trainer.store.port.Store`: the file itself."""
        yield self._path(key)

    def _path(self, key: str) -> Path:
        return self.root / key

    def _make(self, folder: Path) -> None:
        """Make it, durably, if it is not there; another process may have made it a moment ago, and not synced it yet."""
        made = [path for path in folder.parents if not path.exists()]
        os.makedirs(folder, exist_ok=True)
        for parent in {folder.parent, folder.parent.parent, *(path.parent for path in made)}:
            sync_folder(parent)


def folder(path: Path) -> Ref:
    """The folder at ``path``."""
    return Ref(PosixStore(path))
