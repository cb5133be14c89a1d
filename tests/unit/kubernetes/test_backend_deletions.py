"""Pods that go, and what is left of a job."""

from datetime import UTC, datetime
from typing import Any

import pytest
from backend_fixture import Fixture
from cluster_jobs import SETTINGS, error, running

from lmj_api.protocol import WorkerPhase, WorkerState
from lmj_api.spec.migration import MigrationStrategy
from lmj_api.status import JobStatus, RankStatus
from lmj_operator.backend.kubernetes.api import ApiError
from lmj_operator.backend.kubernetes.children import Children
from lmj_operator.backend.port import ActionError
from lmj_operator.plan import CreatePod, DeletePod, PodPhase, Stay
from lmj_operator.plan.membership.looking import SILENT_SECONDS

pytestmark = pytest.mark.integration


async def test_a_pod_is_told_to_go_once(at: Fixture) -> None:
    at.api.objects["pods", "tiny-r0-1"] = running()
    at.cache.put_pod(running())
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    leaving = running()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    at.cache.put_pod(leaving)
    at.clock.now += 1000
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    assert at.api.deletions == [("tiny-r0-1", None)]


async def test_a_pod_that_only_the_cache_knows_is_forgotten(at: Fixture) -> None:
    at.cache.put_pod(running())
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    assert (await at.backend.observe()).pods == ()


@pytest.mark.parametrize(
    ("strategy", "grace", "ends", "phase"),
    [
        ("Live", 60, 1060, PodPhase.RUNNING),
        ("Live", 30, 1200, PodPhase.TERMINATING),  # less time than its agent thinks
        ("Live", 60, 1060 + 3600, PodPhase.RUNNING),  # the API server's clock is another
        ("Live", 60, 1060 - 1000, PodPhase.RUNNING),
        ("Checkpoint", 60, 1200, PodPhase.TERMINATING),
    ],
)
async def test_a_pod_that_is_deleted_runs_while_its_rank_can_move(
    at: Fixture, strategy: str, grace: int, ends: int, phase: PodPhase
) -> None:
    migration = at.backend.job.spec.migration.model_copy(update={"strategy": MigrationStrategy(strategy)})
    spec = at.backend.job.spec.model_copy(update={"migration": migration})
    at.backend.job = at.backend.job.model_copy(update={"spec": spec})
    await at.backend.apply(CreatePod(0, 1))
    await at.backend.write_status(JobStatus(ranks=[RankStatus(rank=0, state="Running", pod="tiny-r0-1")]))
    stamp = datetime.fromtimestamp(ends, UTC).isoformat()

    def deleted() -> dict[str, Any]:
        pod = running()
        pod["metadata"] |= {"deletionTimestamp": stamp, "deletionGracePeriodSeconds": grace}
        return pod

    at.state = at.state.model_copy(update={"worker": WorkerState(incarnation=1, phase=WorkerPhase.RUNNING)})
    at.cache.put_pod(deleted())
    assert (await at.backend.observe()).pods[0].phase is phase
    if phase is not PodPhase.RUNNING:
        return
    at.clock.now += 61
    assert (await at.backend.observe()).pods[0].phase is PodPhase.TERMINATING, "its time is over"
    at.clock.now -= 61
    at.state = at.state.model_copy(update={"leaving": True})
    at.backend._agents.keep(set())  # it has told of that
    seen = (await at.backend.observe()).pods[0]
    assert (seen.phase, seen.leaves) == (PodPhase.RUNNING, True)
    await at.backend.apply(Stay("tiny-r0-1"))
    assert at.told[-1] == "POST /v1/stay"
    at.state = at.state.model_copy(update={"draining": True})
    at.backend._agents.keep(set())
    seen = (await at.backend.observe()).pods[0]
    assert (seen.phase, seen.leaves) == (PodPhase.TERMINATING, False)


@pytest.mark.parametrize("rank", [0, 1])
async def test_rank_0_is_asked_until_its_pod_is_gone_or_silent(at: Fixture, rank: int) -> None:
    """Before it ends it may save a checkpoint, which nobody else hears of."""
    await at.backend.apply(CreatePod(rank, 1))
    pod = running(f"tiny-r{rank}-1")
    pod["metadata"]["deletionTimestamp"] = "1970-01-01T00:17:40Z"
    at.cache.put_pod(pod)
    at.state = at.state.model_copy(update={"leaving": True, "draining": True})
    seen = (await at.backend.observe()).pods[0]
    assert (seen.phase, seen.agent) == (PodPhase.TERMINATING, at.state if rank == 0 else None)
    at.backend._agents.keep(set())
    at.healthy = False
    seen = (await at.backend.observe()).pods[0]
    assert (seen.phase, seen.agent, seen.unreachable_since) == (PodPhase.TERMINATING, None, at.clock.now if rank == 0 else None)
    asked = len(at.told)
    assert (asked > 0) == (rank == 0)
    at.clock.now += SILENT_SECONDS + 0.1
    seen = (await at.backend.observe()).pods[0]
    assert (seen.phase, seen.agent) == (PodPhase.TERMINATING, None)
    assert len(at.told) == asked


async def test_a_pod_that_goes_and_may_have_been_told_to_stay_is_let_go(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    leaving = running()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    at.cache.put_pod(leaving)
    for _ in range(3):
        await at.backend.apply(DeletePod("tiny-r0-1", "replaced"))
    assert at.told == ["POST /v1/drain"]
    assert at.api.deletions == []


@pytest.mark.parametrize(("told_at", "leaves"), [(1003.0, True), (1030.0, False)])
async def test_a_pod_that_hears_late_that_it_is_deleted_does_not_stay(at: Fixture, told_at: float, leaves: bool) -> None:
    """As with a hook before it: what is left is for a checkpoint."""
    await at.backend.apply(CreatePod(0, 1))
    await at.backend.write_status(JobStatus(ranks=[RankStatus(rank=0, state="Running", pod="tiny-r0-1")]))
    pod = running()
    pod["metadata"] |= {"deletionTimestamp": "1970-01-01T00:17:40Z", "deletionGracePeriodSeconds": 60}
    at.cache.put_pod(pod)
    at.state = at.state.model_copy(update={"worker": WorkerState(incarnation=1, phase=WorkerPhase.RUNNING)})
    await at.backend.observe()
    at.state = at.state.model_copy(update={"leaving": True})
    at.backend._agents.keep(set())  # it has told of that
    at.clock.now = told_at
    seen = (await at.backend.observe()).pods[0]
    assert (seen.phase, seen.leaves) == (PodPhase.RUNNING, leaves)


async def test_release_leaves_the_claims(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    await at.backend.children.release(at.backend.job)
    assert {kind for kind, _ in at.api.objects} == {"livemigrationjobs", "pods", "persistentvolumeclaims"}


async def test_release_goes_on_behind_an_error_and_asks_again_only_for_what_is_left(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    for kind in ("services", "poddisruptionbudgets"):
        at.api.refuse["delete", kind] = [error(500, "InternalError", f"no {kind}")]
    with pytest.raises(ApiError, match="no services"):
        await at.backend.children.release(at.backend.job)
    assert {kind for kind, _ in at.api.objects} & {"networkpolicies"} == set()
    before = len(at.api.calls)
    await at.backend.children.release(at.backend.job)
    assert {kind for kind, _ in at.api.objects} == {"livemigrationjobs", "pods", "persistentvolumeclaims"}
    assert [call[:2] for call in at.api.calls[before:]] == [("delete", "services"), ("delete", "poddisruptionbudgets")]
    # A job that is made again has all of them again, and all go again.
    await at.backend.apply(CreatePod(1, 1))
    await at.backend.children.release(at.backend.job)
    assert {kind for kind, _ in at.api.objects} == {"livemigrationjobs", "pods", "persistentvolumeclaims"}


async def test_release_leaves_what_another_made_under_such_a_name(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    successor = Children(at.api, at.cache.children, SETTINGS)  # type: ignore[arg-type]
    at.api.objects["services", "tiny-trainers"]["metadata"]["ownerReferences"] = []
    await successor.release(at.backend.job)
    assert {kind for kind, _ in at.api.objects} == {"livemigrationjobs", "pods", "persistentvolumeclaims", "services"}
    assert at.calls("delete", "services") == 0


async def test_a_pod_of_an_earlier_job_of_this_name_is_not_this_ones(at: Fixture) -> None:
    at.api.objects["pods", "tiny-r0-1"] = running(owner="uid of a job before")
    at.cache.put_pod(running(owner="uid of a job before"))
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    assert at.api.deletions == []
    with pytest.raises(ActionError, match="tiny-r0-1 does not listen"):
        await at.backend.apply(Stay("tiny-r0-1"))


async def test_another_pod_that_has_the_name_by_now_is_not_deleted(at: Fixture) -> None:
    at.cache.put_pod(running())
    at.api.objects["pods", "tiny-r0-1"] = running(uid="another")
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    assert at.api.names("pods") == ["tiny-r0-1"]


async def test_what_another_put_in_the_place_of_our_objects_is_not_deleted(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    kinds = ("services", "networkpolicies", "poddisruptionbudgets")
    for key in [key for key in at.api.objects if key[0] in kinds]:
        at.api.objects[key]["metadata"] |= {"uid": "another", "ownerReferences": []}
    await at.backend.children.release(at.backend.job)
    assert all(at.api.names(kind) for kind in kinds)
