"""The processors that this process may use, and how the processes of a node share them."""

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> list[int]:
    """Numbers of the processors that this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_processors(cores: Sequence[int], groups: Path = _CGROUPS) -> int:
    """How many processors' time this process may use: ``cores``, or fewer where its cgroup has a quota."""
    quota = _quota(groups)
    return max(1, len(cores) if quota is None else min(len(cores), math.ceil(quota)))


def shares(cores: Sequence[int], processes: int) -> list[list[int]]:
    """Processors of each of ``processes``: each has its own, as many as the others or one more, in a row. Where there are fewer
    processors than processes, several share one.
    """
    if len(cores) < processes:
        return [[cores[i % len(cores)]] for i in range(processes)]
    bounds = [i * len(cores) // processes for i in range(processes + 1)]
    return [list(cores[a:b]) for a, b in pairwise(bounds)]


def _quota(groups: Path) -> float | None:
    """Processors that the container's cgroup may use; None: it has no limit, or it cannot be read."""
    try:
        quota, period = (groups / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass  # it may be of the first version
    try:
        limit = int((groups / "cpu/cpu.cfs_quota_us").read_text())
        return None if limit <= 0 else limit / int((groups / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
