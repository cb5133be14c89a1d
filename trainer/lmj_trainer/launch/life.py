"""Signs of life of the processes of a script that says nothing: by these it is told from one that hangs.

What counts: a process, or one that descends from it, wrote something (to its output, to a file), or used a twentieth of a processor since
the last look. A process that waits for others in a collective of gloo does neither; one that waits for a GPU computes in a loop as a rule,
so that its hang is noticed by the time-out of NCCL alone. A rank that waits is no hang while another of the view shows signs of life.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

LEAST_SHARE = 0.05
"""Of a processor."""


@dataclass(frozen=True)
class Use:
    """What a process has done so far."""

    written: int
    """Bytes."""
    seconds: float
    """Of processor time."""


class Pulse:
    """Looks at processes, and compares them with the look before."""

    def __init__(self) -> None:
        self._before: dict[int, Use] = {}
        self._at: float | None = None

    def lively(self, pids: Collection[int], now: float) -> bool:
        """Whether any of ``pids``, or of their descendants, has shown signs of life since the last call. ``now``: seconds, any clock."""
        uses = {pid: use for pid in _with_descendants(pids) if (use := _use(pid)) is not None}
        before, took = self._before, 0.0 if self._at is None else now - self._at
        self._before, self._at = uses, now
        if not before.keys() >= uses.keys():
            return True  # another process was started
        spent = sum(use.seconds - before[pid].seconds for pid, use in uses.items())
        return any(use.written > before[pid].written for pid, use in uses.items()) or spent > LEAST_SHARE * took


def _with_descendants(pids: Collection[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = set(pids), list(pids)
    while todo:
        new = [child for child in children.get(todo.pop(), []) if child not in found]
        found.update(new)
        todo += new
    return found


def _stat(pid: int) -> list[str] | None:
    """From the process's state on; None: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _use(pid: int) -> Use | None:
    fields = _stat(pid)
    if fields is None:
        return None
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        written = next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))
    except (OSError, StopIteration):
        written = 0  # a sandbox may not tell
    return Use(written, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
