"""What a process has used, and what others have of this machine, from /proc."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int, peak: bool = False) -> float:
    """Memory in 10^6 bytes, now or the most that it ever had."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(wanted))) * 1024 / 1e6


def stolen() -> tuple[float, ...]:
    """Seconds, in hundredths, for which the host of this virtual machine gave each of its processors to others, since it began."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    return tuple(int(words[8]) / _TICKS for words in lines if words[0][:3] == "cpu" and words[0] != "cpu")
