"""What a command that was killed left behind: agents notice it at once and end their workers; this makes sure of it."""

import os
import shutil
import signal
import time
from pathlib import Path

from lmj_operator.backend.local.pod import read_announcement
from lmj_operator.backend.local.process import command_line, signal_group

SWEEP_SECONDS = 10.0


def sweep(pods: Path) -> None:
    """End the agents of pods whose folders are in ``pods`` and remove the folders. To be called with the run's lock held.

    Raises TimeoutError when an agent cannot be ended.
    """
    if not pods.is_dir():
        return
    for folder in sorted(pods.iterdir()):
        written = read_announcement(folder)
        if written is not None and written.pid != os.getpid():
            _end(written.pid, str(folder))
        shutil.rmtree(folder, ignore_errors=True)


def _end(pid: int, folder: str) -> None:
    deadline = time.monotonic() + SWEEP_SECONDS
    # Its number may be another's by now; its command line names the folder. Its worker ends with it.
    while folder in command_line(pid):
        signal_group(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} of an earlier run in {folder} does not end")
        time.sleep(0.05)
