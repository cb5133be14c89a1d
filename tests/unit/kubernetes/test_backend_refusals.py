"""What the backend does when it may not, or cannot, make what it is told to: quotas, errors, invalid pods."""

import pytest
from backend_fixture import Fixture
from cluster_jobs import SETTINGS, error, job

from lmj_api.protocol import USER_ERROR
from lmj_api.status import JobStatus, Phase
from lmj_operator.backend.kubernetes import backend as module
from lmj_operator.backend.port import ActionError
from lmj_operator.plan import CreatePod, PodPhase


async def test_a_used_up_quota_is_no_matter_for_what_is_there_already(at: Fixture) -> None:
    """A server asks the quota before it looks whether there is one of the name."""
    await at.backend.apply(CreatePod(0, 1))
    spent = error(403, "Forbidden", "exceeded quota: persistentvolumeclaims=1")
    at.api.refuse["create", "persistentvolumeclaims"] = [spent]
    at.backend.children.__init__(at.api, at.cache.children, SETTINGS)  # type: ignore[misc]
    await at.backend.apply(CreatePod(1, 1))
    assert at.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"]
    assert (await at.backend.observe()).pods[-1].waits is None
    await at.backend.apply(CreatePod(0, 2))
    assert at.calls("create", "persistentvolumeclaims") == 2, "once by each operator"


async def test_a_used_up_quota_is_waited_for_by_what_is_not_there(at: Fixture) -> None:
    at.api.refuse["create", "persistentvolumeclaims"] = [error(403, "Forbidden", "exceeded quota: claims=1")]
    await at.backend.apply(CreatePod(0, 1))
    seen = (await at.backend.observe()).pods[0]
    assert seen.waits is not None
    assert seen.waits.message == "exceeded quota: claims=1"
    at.clock.now += 3
    await at.backend.observe()
    assert at.api.names("pods") == ["tiny-r0-1"]


@pytest.mark.parametrize("status", [400, 422])
async def test_a_pod_that_the_server_calls_invalid_is_a_users_error(at: Fixture, status: int) -> None:
    at.api.refuse["create", "pods"] = [error(status, "Invalid", "spec.containers[0].resources: must be a number")]
    await at.backend.apply(CreatePod(0, 1))
    seen = (await at.backend.observe()).pods[0]
    assert (seen.phase, seen.exit_code) == (PodPhase.GONE, USER_ERROR)
    assert seen.exit_message == "spec.containers[0].resources: must be a number"
    await at.backend.apply(CreatePod(0, 1))
    assert at.calls("create", "pods") == 1


async def test_a_spent_quota_is_waited_for(at: Fixture) -> None:
    at.api.refuse["create", "pods"] = [error(403, "Forbidden", "exceeded quota: pods=4")] * 2
    await at.backend.apply(CreatePod(0, 1))
    for _ in range(9):
        seen = (await at.backend.observe()).pods[0]
        assert seen.waits is not None
        assert (seen.waits.reason, seen.waits.message, seen.waits.since) == ("Forbidden", "exceeded quota: pods=4", 1000.0)
    assert at.calls("create", "pods") == 1
    at.clock.now += 3
    await at.backend.observe()
    assert at.calls("create", "pods") == 2
    at.clock.now += 60
    seen = (await at.backend.observe()).pods[0]
    assert seen.waits is None
    assert at.api.names("pods") == ["tiny-r0-1"]


async def test_a_server_that_fails_is_not_asked_all_the_time(at: Fixture) -> None:
    at.api.refuse["create", "pods"] = [error(500)]
    with pytest.raises(ActionError):
        await at.backend.apply(CreatePod(0, 1))
    for _ in range(5):
        await at.backend.apply(CreatePod(0, 1))  # nothing is done, and nothing said again
    assert at.calls("create", "pods") == 1
    at.clock.now += 1.1
    await at.backend.apply(CreatePod(0, 1))
    assert at.api.names("pods") == ["tiny-r0-1"]


async def test_what_was_made_behind_an_error_is_not_made_again_and_the_wait_gets_no_longer(at: Fixture) -> None:
    kinds = ("networkpolicies", "poddisruptionbudgets", "services", "persistentvolumeclaims")
    for number, kind in enumerate(kinds):
        verb = "create" if kind == "persistentvolumeclaims" else "patch"
        at.api.refuse[verb, kind] = [error(500, "InternalError", f"no {kind}")] * number
    for kind in kinds[1:]:
        with pytest.raises(ActionError, match=f"no {kind}"):
            await at.backend.apply(CreatePod(0, 1))
        at.clock.now += 1.1
    await at.backend.apply(CreatePod(0, 1))
    assert at.api.names("pods") == ["tiny-r0-1"]
    assert [sum(call[1] == kind for call in at.api.calls) for kind in kinds] == [1, 2, 3, 4]


async def test_a_budget_that_cannot_be_written_does_not_end_supervision(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    await at.backend.write_status(JobStatus(started=at.clock.now))
    at.backend.job = job(migration={"strategy": "Never"})
    at.api.refuse["create", "persistentvolumeclaims"] = [error(403, "Forbidden", "exceeded quota")] * 9
    at.api.refuse["patch", "poddisruptionbudgets"] = [error(500, "InternalError", "no budgets")]
    budgets, claims = at.calls("patch", "poddisruptionbudgets"), at.calls("create", "persistentvolumeclaims")
    for _ in range(3):
        assert [p.name for p in (await at.backend.observe()).pods] == ["tiny-r0-1"]
    assert at.calls("patch", "poddisruptionbudgets") == budgets + 1
    at.clock.now += module.CHILDREN_AGAIN_SECONDS
    await at.backend.observe()
    await at.backend.apply(CreatePod(1, 1))
    assert at.api.objects["poddisruptionbudgets", "tiny-trainers"]["spec"]["minAvailable"] == 1
    assert at.calls("patch", "poddisruptionbudgets") == budgets + 2
    assert at.calls("create", "persistentvolumeclaims") == claims, "they are there, whatever room there is by now"
    assert at.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"]


async def test_nothing_is_made_for_a_change_of_a_job_that_has_ended(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    await at.backend.write_status(JobStatus(started=at.clock.now, phase=Phase.SUCCEEDED, cleaned=True))
    await at.backend.children.release(at.backend.job)
    at.backend.job = job(migration={"strategy": "Never"})
    await at.backend.observe()
    assert {kind for kind, _ in at.api.objects} == {"livemigrationjobs", "pods", "persistentvolumeclaims"}


async def test_objects_of_before_a_failover_are_as_the_spec_wants_them_now(at: Fixture) -> None:
    """The spec may have changed while no operator was there, and people may have changed the objects. The claims stay as they are."""
    await at.backend.write_status(JobStatus(started=at.clock.now))
    for _ in range(3):
        await at.backend.observe()
    writes = [call[:2] for call in at.api.calls if call[0] in ("create", "patch") and call[1] != "livemigrationjobs"]
    assert writes == [("patch", kind) for kind in ("networkpolicies", "poddisruptionbudgets", "services")]
