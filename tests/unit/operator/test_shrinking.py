"""Who has the state of a job that is to have fewer replicas."""

from dataclasses import replace

import pytest
from planned import job_spec
from tests.unit.operator.seen import pod, view, worker

from lmj_api.protocol import WorkerPhase
from lmj_api.status import JobStatus
from lmj_operator.plan import Observed, PodObserved, PodPhase
from lmj_operator.plan.membership.shrinking import with_who_has_the_state

EXITED = WorkerPhase.EXITED
TRAINS = [pod(rank, 1, worker()) for rank in range(3)]


def replicas(*pods: PodObserved, wanted: int = 1, known: JobStatus | None = None) -> int:
    """Of a job of ``wanted`` replicas, whose newest view has three."""
    spec = job_spec(1, pipeline={"stages": 1, "microBatches": 4}, dataParallel={"shards": 4, "replicas": wanted})
    status = JobStatus(view=view(*TRAINS)) if known is None else known
    return with_who_has_the_state(Observed("j", spec, status, pods)).spec.data_parallel.replicas


LOST = [
    replace(TRAINS[0], phase=PodPhase.GONE),
    replace(TRAINS[0], phase=PodPhase.TERMINATING),
    replace(TRAINS[0], rank=None),
    pod(0, 2, worker()),
    pod(0, 1, worker(EXITED)),
    pod(0, 1, worker(WorkerPhase.READY, holding=None)),
]
KEPT = [
    TRAINS[0],
    pod(0, 1),
    pod(0, 1, worker(WorkerPhase.STARTING, holding=None)),
    pod(0, 1, worker(WorkerPhase.READY)),
]


@pytest.mark.parametrize("first", LOST)
def test_the_first_that_may_have_it_is_kept(first: PodObserved) -> None:
    assert replicas(first, *TRAINS[1:]) == 2
    assert replicas(first, TRAINS[2]) == 3


@pytest.mark.parametrize("first", KEPT)
def test_where_one_of_the_jobs_own_may_have_it_no_other_is_needed(first: PodObserved) -> None:
    assert replicas(first, *TRAINS[1:]) == 1


def test_where_nobody_has_it_the_job_is_as_it_is_to_be() -> None:
    assert replicas() == 1
    assert replicas(*TRAINS, known=JobStatus()) == 1
    assert replicas(*TRAINS[1:], wanted=3) == 3
