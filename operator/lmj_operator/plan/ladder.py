"""The failure ladder: a worker in its pod, another pod, another node; the budget is its end."""

from collections.abc import Mapping
from dataclasses import replace

from lmj_api.spec.recovery import Recovery
from lmj_api.status import JobStatus
from lmj_operator.plan.failures import Failure, Remedy


def climb(failures: tuple[Failure, ...], status: JobStatus, recovery: Recovery, step: int) -> tuple[Failure, ...]:
    """``failures``, with another pod for those whose worker was restarted too often in this one; ``step``: committed steps."""
    before = fruitless(status, step)
    return tuple(_raised(f, before.get(f.rank, 0), recovery.worker_restarts) for f in failures)


def fruitless(status: JobStatus, step: int) -> Mapping[int, int]:
    """Restarts of each rank's worker in its pod, in a row without a new step. A step is of all ranks, so one ends every row."""
    return {} if step > status.restart_step else {r.rank: r.worker_restarts for r in status.ranks}


def _raised(failure: Failure, restarts: int, most: int) -> Failure:
    if failure.remedy is not Remedy.WORKER or restarts < most:
        return failure
    why = f"the pod is replaced, for {restarts} restarts of its worker brought no new step (recovery.workerRestarts {most})"
    return replace(failure, remedy=Remedy.POD, message=f"{failure.message}; {why}")
