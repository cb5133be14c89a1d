"""How many CPU threads a rank of a run on this machine computes with, where the job does not say."""

import os
from pathlib import Path

from lmj_api.spec.job import LiveMigrationJob

MOST = 256
_CGROUP = Path("/sys/fs/cgroup")


def with_threads(job: LiveMigrationJob, kept: int | None, processors: int) -> tuple[LiveMigrationJob, str | None]:
    """``job`` with its threads settled, and a line for people where that is news.

    ``kept``: what the run that it goes on with has had from its first start; the bits depend on it, so it does not change with the machine.
    """
    training, ranks = job.spec.training, job.spec.world_size
    if training.threads is not None or job.spec.strategy.stateless:  # each process of a script gets its own
        return job, None
    threads = kept or min(MOST, max(1, processors // ranks))
    settled = training.model_copy(update={"threads": threads})
    spec = job.spec.model_copy(update={"training": settled})
    why = "as when the run began" if kept is not None else f"{processors} processors for {ranks} ranks"
    return job.model_copy(update={"spec": spec}), f"training.threads: {threads} a rank ({why})"


def processors(cgroup: Path = _CGROUP) -> int:
    """Processors that this process may use: those of the machine, fewer where it is bound to some or a container has a quota."""
    try:
        there = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        there = os.cpu_count() or 1
    quota = _quota(cgroup)
    return there if quota is None else max(1, min(there, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """Processors' worth of time that the control group may use; None: no limit is known."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:  # max, or -1
        return None
    return int(quota) / int(period)
