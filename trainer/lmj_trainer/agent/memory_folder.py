"""The folder of memory for the snapshots of a script: the agent's, so that it outlives the script's processes and their launcher."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - it is memory, and each agent's folder has a name of its own
VARIABLE = "LMJ_MEMORY_DIR"
"""Tells a launcher where it is."""
_PREFIX = "lmj-memory-"
_NEW = "lmj-new-"


@contextlib.contextmanager
def memory_folder(parent: Path = MEMORY) -> Iterator[Path]:
    """A folder in memory, for as long as the agent lives. Raises OSError.

    The agent holds a lock on it. Folders that nobody holds are of agents that were killed, and are removed.
    """
    for left in parent.glob(f"{_PREFIX}*"):
        _remove_unheld(left)
    made = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
    lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    folder = parent / made.name.replace(_NEW, _PREFIX)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Under that name only now: an agent that begins beside this one would remove it.
        made.rename(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_unheld(folder: Path) -> None:
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # gone, or another user's
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(lock)
