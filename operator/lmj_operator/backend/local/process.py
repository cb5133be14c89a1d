"""Processes and process groups: ending them for good, within a bounded time."""

import contextlib
import os
import signal
from pathlib import Path


def signal_group(leader: int, number: signal.Signals) -> bool:
    """Send a signal to the process group of ``leader``; False when there is no such group any more."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    return True


def kill_worker(pid: int, agent: int) -> None:
    """End a worker and its group, unless the number is another's by now: only the agent's session, or one of its own, is hit."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getsid(pid) not in (agent, pid):
            return
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def last_line(path: Path, limit: int = 8192) -> str | None:
    """The last line of a log that says something, without an ``error:`` before it."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    said = next((line.strip() for line in reversed(lines) if line.strip()), None)
    return said.removeprefix("error: ") if said is not None else None


def command_line(pid: int) -> list[str]:
    """The arguments of a process; empty when there is none, or when the system does not tell."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def has_open(pid: int, path: Path) -> bool:
    """Whether process ``pid`` is there and has ``path`` open; where the system does not tell, whether it is there."""
    folder = Path(f"/proc/{pid}/fd")
    if not Path("/proc/self/fd").is_dir():
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return pid > 0
    try:
        wanted = path.stat()
        links = list(folder.iterdir())
    except OSError:
        return False
    for link in links:
        with contextlib.suppress(OSError):  # closed meanwhile
            found = link.stat()
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False
