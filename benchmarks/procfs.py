"""What /proc reports a job's processes: who descends from whom, memory, processor time."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import chain
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: list[str] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += file.read_text().split()
    return [pid, *chain.from_iterable(family(int(child)) for child in children)]


def processor_seconds(pids: list[int]) -> float:
    """Processor time of all of them, with that of children that ended."""
    return sum(_seconds(pid) for pid in pids)


def memory_mb(pids: list[int]) -> tuple[float, float]:
    """Resident memory in MB: each page counted in each process, and by parts (a page that n processes share counts as 1/n)."""
    resident = proportional = 0.0
    for pid in pids:
        with suppress(OSError):
            fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
            resident += int(fields["Rss"].split()[0]) * 1024 / 1e6
            proportional += int(fields["Pss"].split()[0]) * 1024 / 1e6
    return resident, proportional


def threads(pid: int) -> list[int]:
    """Ids of its threads; the first thread's is ``pid``."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS
