"""One command a run: a lock that ends with the process that holds it, however that ends."""

import fcntl
import os
from pathlib import Path
from types import TracebackType


class RunLocked(Exception):  # noqa: N818 - it names what is the matter
    """Another command runs this job."""


class RunLock:
    """An exclusive lock on a run's folder, for use in ``with``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def __enter__(self) -> "RunLock":
        # Not inheritable: a child that outlives us must not keep the lock.
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(file, 32).decode(errors="replace").strip() or "unknown"
            os.close(file)
            raise RunLocked(f"another lmj run (process {owner}) trains into {self._path.parent.parent}") from None
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        self._file = file
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def lock_holder(path: Path) -> int | None:
    """Process id of the command that holds the lock; None: nobody does."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(file, 32).decode(errors="replace").strip()
        return int(text) if text.isdigit() else 0
    else:
        return None
    finally:
        os.close(file)
