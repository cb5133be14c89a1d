"""The memory of a rank's state: a file without a name, which lives as long as the agent and is handed to each of its workers."""

import os
import tempfile
from pathlib import Path

OPTION = "--memory-fd"
"""The worker's option that names it."""
SNAPSHOT_OPTIONS = ("--snapshots-fd", "--kept-fd")
"""Those that name the files for snapshots of the state, and for those of another rank's."""


def open_memory(folder: Path) -> int:
    """Descriptor of a new, empty file. Nothing is left of it when the agent and its workers are gone, however they went.

    On Linux it is memory, of the pod's and not of ``/dev/shm``'s limit; elsewhere an unlinked file in ``folder``, which the system keeps
    in memory as long as it can.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lmj-state", os.MFD_CLOEXEC)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())
