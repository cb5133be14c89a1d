"""The failure ladder: another view, a worker in its pod, another pod, another node; the budget is its end."""

from collections.abc import Mapping
from dataclasses import replace

from lmj_api.spec.recovery import Recovery
from lmj_api.status import JobStatus
from lmj_operator.plan.failures.failures import Failure, Remedy
from lmj_operator.plan.failures.links import moves_apart
from lmj_operator.plan.observe.facts import RankFacts


def climb(
    failures: tuple[Failure, ...], ranks: tuple[RankFacts, ...], status: JobStatus, recovery: Recovery, step: int
) -> tuple[Failure, ...]:
    """``failures``, with another pod for those whose worker was restarted, or whose link broke, too often in this one.

    ``step``: committed steps.
    """
    before = fruitless(status, step)
    apart = (moves_apart(f, ranks, status.incidents) for f in failures)
    return tuple(_raised(f, before.get(f.rank, 0), recovery.worker_restarts) for f in apart)


def fruitless(status: JobStatus, step: int) -> Mapping[int, int]:
    """Restarts of each rank's worker in its pod, in a row without a new step. A step is of all ranks, so one ends every row."""
    return {} if step > status.restart_step else {r.rank: r.worker_restarts for r in status.ranks}


def _raised(failure: Failure, restarts: int, most: int) -> Failure:
    if failure.remedy is not Remedy.WORKER or restarts < most:
        return failure
    why = f"the pod is replaced because {restarts} restarts of its worker brought no new step (recovery.workerRestarts {most})"
    return replace(failure, remedy=Remedy.POD, message=f"{failure.message}; {why}")
