"""A job's task: from the first sight of the job to its deletion."""

import asyncio
import gc
import weakref
from contextvars import ContextVar
from typing import Any

import pytest
from cluster_jobs import SETTINGS, UID, MemoryKeys, error, job_body
from job_world import World, count, until

from lmj_api.names import MIGRATE
from lmj_api.status import Condition, JobStatus, Phase, RankStatus
from lmj_operator.backend.kubernetes.backend import KubernetesBackend
from lmj_operator.backend.kubernetes.cache import Cache
from lmj_operator.backend.kubernetes.resources import Resource
from lmj_operator.backend.kubernetes.status_store import Replicas
from lmj_operator.controller.job_task import JobTask, Place
from lmj_operator.controller.notes import Note
from lmj_operator.controller.refusal import corrected
from lmj_operator.plan import Observed

pytestmark = pytest.mark.integration


def refusal(world: World) -> Condition | None:
    return next((c for c in world.status.conditions if c.type == "ChangeRefused"), None)


async def test_a_job_gets_its_pods_and_says_so(world: World) -> None:
    await world.put(job_body())
    await until(lambda: world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"])
    await until(lambda: world.notes() == ["Started"])
    assert world.status.serials == {"0": 1, "1": 1}
    assert b'lmj_jobs{phase="Pending"} 1.0' in world.metrics.render()


async def test_a_server_that_works_in_vain_for_a_job_has_twice_as_long_for_others(world: World) -> None:
    world.api.refuse["patch", "livemigrationjobs"] = [error(504, took=0.5)]
    began = asyncio.get_running_loop().time()
    await world.put(job_body())
    await until(lambda: world.notes() == ["Started"])
    assert asyncio.get_running_loop().time() - began >= 1.0


async def test_events_of_a_thousand_jobs_wait_until_the_server_takes_them(world: World) -> None:
    for number in range(3000):
        world.notebook.post(job_body(f"job-{number}")["metadata"], Note("Started", "its pods are being made"), 0.0)
    await until(lambda: len(world.notes()) == 3000)


async def test_a_job_that_is_gone_leaves_nothing_for_the_garbage_collector(world: World) -> None:
    await world.put(job_body())
    await until(lambda: len(world.api.names("pods")) == 2)
    job = world.controller._tasks["team", "tiny"].job
    left = [weakref.ref(job), weakref.ref(job._backend), weakref.ref(job._reconciler)]
    del job
    gc.collect()
    gc.disable()
    try:
        await world.controller.job_seen("DELETED", world.api.objects.pop(("livemigrationjobs", "tiny")))
        await asyncio.sleep(0)
        assert [ref() for ref in left] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize(("verb", "kind"), [("apply", "livemigrationjobs"), ("create", "pods")])
async def test_no_status_is_in_memory_while_a_call_waits(
    world: World, monkeypatch: pytest.MonkeyPatch, verb: str, kind: str
) -> None:
    """Thousands of jobs may wait: of each there is what is to be stored, told and made, and not what that was planned from."""
    waits, call = asyncio.Event(), getattr(world.api, verb)

    async def later(resource: Resource, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        if resource.plural == kind:
            waits.set()
            await asyncio.Event().wait()
        return await call(resource, body, **options)

    def statuses() -> list[JobStatus]:
        return [thing for thing in gc.get_objects() if isinstance(thing, JobStatus)]

    gc.collect()
    before = statuses()
    monkeypatch.setattr(world.api, verb, later)
    await world.put(job_body())
    await waits.wait()
    assert len(statuses()) == len(before)


async def test_a_request_to_move_that_comes_with_a_change_of_the_spec_is_heard(world: World) -> None:
    await world.put(job_body())
    await until(lambda: world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"])
    body = job_body(checkpoint={"keep": 7})
    body["metadata"] |= {"generation": 2, "annotations": {MIGRATE: "9 now"}}
    await world.put(body)
    await until(lambda: world.status.move_request == "9 now")
    assert "9" in (world.status.move_refused or "")


async def test_a_job_lives_on_without_the_event_that_it_began_with(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    event: ContextVar[str] = ContextVar("event", default="none")
    create, seen = world.api.create, []

    async def watched(resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        seen.append(event.get())
        return await create(resource, body)

    monkeypatch.setattr(world.api, "create", watched)
    event.set("all of an object")
    await world.put(job_body())
    await until(lambda: world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"])
    assert set(seen) == {"none"}


async def test_a_spec_that_cannot_run_fails_at_once_and_may_be_corrected(world: World) -> None:
    await world.put(job_body(storage={}))
    await until(lambda: world.api.objects["livemigrationjobs", "tiny"].get("status", {}).get("phase") == "Failed")
    status = world.status
    assert status.message.startswith("spec.storage.output: missing")
    assert next(c for c in status.conditions if c.type == "Failed").status == "True"
    assert status.restarts == 0
    assert world.api.names("pods") == []
    await until(lambda: world.notes() == ["Failed"])
    good = job_body()
    good["metadata"]["generation"] = 2
    await world.put(good)
    await until(lambda: world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"])
    assert world.status.phase is Phase.PENDING


async def test_a_bad_change_of_a_running_job_is_told_and_not_followed(world: World) -> None:
    await world.put(job_body())
    await until(lambda: len(world.api.names("pods")) == 2)
    bad = job_body(template={"spec": {"restartPolicy": "Always"}})
    bad["metadata"]["generation"] = 2
    await world.put(bad)
    await until(lambda: "ChangeRefused" in world.notes() and refusal(world) is not None)
    condition = refusal(world)
    assert condition is not None
    assert (condition.status, condition.message) == (
        "True",
        "spec.template.spec.restartPolicy: must be Never: the operator replaces pods that end",
    )
    assert (world.status.phase, world.status.observed_generation) == (Phase.PENDING, 1)
    good = job_body(recovery={"maxRestarts": 3})
    good["metadata"]["generation"] = 3
    await world.put(good)
    await until(lambda: (found := refusal(world)) is not None and found.status == "False")
    assert world.status.observed_generation == 3


async def test_an_operator_that_starts_over_a_bad_spec_leaves_the_training_alone(world: World) -> None:
    body = job_body(template={"spec": {"restartPolicy": "Always"}})
    running = JobStatus(phase=Phase.RUNNING, started=1.0, serials={"0": 1, "1": 1}, observed_generation=1)
    body["status"] = running.model_dump(mode="json", by_alias=True, exclude_none=True)
    await world.put(body)
    await until(lambda: refusal(world) is not None)
    assert (world.status.phase, world.status.serials) == (Phase.RUNNING, {"0": 1, "1": 1})
    assert {call[0] for call in world.api.calls} <= {"patch", "create"}
    assert world.api.names("pods") == []


async def test_a_pod_that_the_server_calls_invalid_fails_the_job_without_restarts(world: World) -> None:
    world.api.refuse["create", "pods"] = [error(422, "Invalid", "spec.nodeSelector: bad")] * 2
    await world.put(job_body())
    await until(lambda: world.status.phase is Phase.FAILED)
    assert (world.status.message, world.status.restarts) == ("spec.nodeSelector: bad", 0)
    await until(lambda: world.status.cleaned)
    assert {kind for kind, _ in world.api.objects} == {"livemigrationjobs", "persistentvolumeclaims", "events"}


async def test_a_finished_job_is_deleted_when_its_time_is_over(world: World) -> None:
    body = job_body(ttlSecondsAfterFinished=0)
    done = JobStatus(phase=Phase.SUCCEEDED, started=1.0, finished=2.0)
    body["status"] = done.model_dump(mode="json", by_alias=True, exclude_none=True)
    await world.put(body)
    await until(lambda: ("livemigrationjobs", "tiny") not in world.api.objects)


async def test_a_refused_job_is_deleted_when_its_time_is_over(world: World) -> None:
    await world.put(job_body(storage={}, ttlSecondsAfterFinished=0))
    await until(lambda: ("livemigrationjobs", "tiny") not in world.api.objects)


async def test_a_finished_job_costs_no_calls_once_it_is_cleaned(world: World) -> None:
    body = job_body()
    done = JobStatus(phase=Phase.SUCCEEDED, started=1.0, finished=2.0, cleaned=True, observed_generation=1)
    body["status"] = done.model_dump(mode="json", by_alias=True, exclude_none=True)
    await world.put(body)
    await asyncio.sleep(0.3)
    assert world.api.calls == []


async def test_the_metrics_tell_the_replicas_of_a_job_that_shares_steps(world: World) -> None:
    parts = {"shards": 2, "replicas": 2}
    await world.put(job_body(dataParallel=parts))
    await until(lambda: list(world.controller.replicas()) == [("team", "tiny", Replicas(0, 2, 0))])


async def test_the_metrics_tell_no_replicas_of_a_job_at_rest(world: World) -> None:
    body = job_body(dataParallel={"shards": 2, "replicas": 2})
    done = JobStatus(phase=Phase.SUCCEEDED, started=1.0, finished=2.0, cleaned=True, observed_generation=1, wanted_replicas=2)
    body["status"] = done.model_dump(mode="json", by_alias=True, exclude_none=True)
    await world.put(body)
    assert list(world.controller.phases()) == [Phase.SUCCEEDED]
    assert list(world.controller.replicas()) == []


async def test_the_metrics_tell_no_replicas_of_a_job_that_has_one(world: World) -> None:
    await world.put(job_body())
    await until(lambda: len(world.api.names("pods")) == 2)
    assert list(world.controller.replicas()) == []


async def test_a_deleted_job_is_let_go(world: World) -> None:
    await world.put(job_body())
    await until(lambda: len(world.api.names("pods")) == 2)
    await world.controller.job_seen("DELETED", world.api.objects["livemigrationjobs", "tiny"])
    assert list(world.controller.phases()) == []


async def test_another_operators_write_is_taken_up(world: World) -> None:
    """Two operators for a moment (a node that was cut off): what the other stored is not written over."""
    await world.put(job_body())
    await until(lambda: len(world.api.names("pods")) == 2)
    await until(lambda: b'lmj_passes_total{result="done"} 2.0' in world.metrics.render())  # it has seen them
    other = world.status.model_copy(update={"serials": {"0": 5, "1": 1}})
    stored = world.api.objects["livemigrationjobs", "tiny"]
    stored["status"] = other.model_dump(mode="json", by_alias=True, exclude_none=True)
    stored["metadata"]["resourceVersion"] = "999"
    gone = world.controller.cache.pods(("team", "tiny"))[0]
    del world.api.objects["pods", gone["metadata"]["name"]]
    world.controller.cache.drop_pod(gone)  # news: it must write
    await until(lambda: world.status.serials["0"] >= 5 and ("get", "livemigrationjobs", "tiny") in world.api.calls)
    assert world.status.serials["0"] >= 5


async def test_a_pod_that_the_watch_has_not_told_of_is_looked_for_before_it_is_replaced(world: World) -> None:
    """What a watch begins with may be old news."""
    await world.put(job_body())
    await until(lambda: len(world.api.names("pods")) == 2)
    await until(lambda: b'lmj_passes_total{result="done"} 2.0' in world.metrics.render())
    world.controller.cache.drop_pod(world.controller.cache.pods(("team", "tiny"))[0])
    await until(lambda: len(world.controller.cache.pods(("team", "tiny"))) == 2)
    assert world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"]
    assert world.status.incidents == []


async def test_late_news_of_an_earlier_job_of_the_name_leaves_the_new_one_alone(world: World) -> None:
    """Kopf hands on the news of each object in order, and those of two objects in any."""
    await world.put(job_body())
    await until(lambda: len(world.api.names("pods")) == 2)
    old = world.api.objects["livemigrationjobs", "tiny"]
    await world.controller.job_seen("DELETED", old)
    world.api.objects.clear()
    new = job_body()
    new["metadata"]["uid"] = UID.replace("1", "2")
    await world.put(new)
    await until(lambda: len(world.api.names("pods")) == 2)
    [task] = [known.task for known in world.controller._tasks.values()]
    for kind in ("MODIFIED", None, "DELETED"):
        await world.controller.job_seen(kind, old)
    assert [known.task for known in world.controller._tasks.values()] == [task]
    assert not task.done()
    newer = {**new, "metadata": {**new["metadata"], "uid": UID.replace("1", "3"), "resourceVersion": str(world.api.version + 1)}}
    await world.controller.job_seen("ADDED", newer)
    assert [known.uid for known in world.controller._tasks.values()] == [UID.replace("1", "3")]


async def test_a_job_made_again_is_not_deleted_when_the_time_of_the_one_before_is_over(world: World) -> None:
    body = job_body(ttlSecondsAfterFinished=0)
    done = JobStatus(phase=Phase.SUCCEEDED, started=1.0, finished=2.0, cleaned=True, observed_generation=1)
    body["status"] = done.model_dump(mode="json", by_alias=True, exclude_none=True)
    again = job_body()
    again["metadata"]["uid"] = UID.replace("1", "2")
    world.api.objects["livemigrationjobs", "tiny"] = again
    await world.controller.job_seen("ADDED", body)
    await until(lambda: ("delete", "livemigrationjobs", "tiny") in world.api.calls)
    assert world.api.names("livemigrationjobs") == ["tiny"]


def failing(world: World) -> Condition | None:
    return next((c for c in world.status.conditions if c.type == "ReconcileFailed"), None)


async def test_an_error_that_nobody_expected_is_seen_and_over_when_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.put(job_body())
    await until(lambda: len(world.api.names("pods")) == 2)
    wrong, observe = [True], KubernetesBackend.observe

    async def observed(backend: KubernetesBackend) -> Observed:
        if wrong:
            raise KeyError("lmj.dev/job")
        return await observe(backend)

    monkeypatch.setattr(KubernetesBackend, "observe", observed)
    world.controller._wake(("team", "tiny"))
    await until(lambda: "ReconcileFailed" in world.notes())
    condition = failing(world)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "KeyError")
    assert condition.message == "the operator could not look after the job, and tries again: KeyError: 'lmj.dev/job'"
    writes = world.api.calls.count(("patch", "livemigrationjobs", "tiny"))
    await until(lambda: count(world, "crashed") >= 3)
    assert world.api.calls.count(("patch", "livemigrationjobs", "tiny")) == writes, "it is told once"
    assert world.notes().count("ReconcileFailed") == 1
    wrong.clear()
    await until(lambda: (found := failing(world)) is not None and found.status == "False")
    assert world.status.phase is Phase.PENDING


async def test_an_error_behind_a_write_is_tried_again_later_and_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        if asyncio.current_task() in {known.task for known in world.controller._tasks.values()}:
            pauses.append(seconds)
        await sleep(0.01)

    async def wrong(*_: object) -> None:
        raise TypeError("no")

    monkeypatch.setattr("lmj_operator.controller.job_task.asyncio.sleep", paused)
    monkeypatch.setattr(KubernetesBackend, "apply", wrong)
    await world.put(job_body())
    await until(lambda: len(pauses) >= 6)
    assert pauses[:6] == [0.05 * 2**n for n in range(6)]


async def test_a_call_that_is_refused_again_and_again_is_seen(world: World) -> None:
    body = job_body()
    begun = JobStatus(started=1.0, serials={"0": 1, "1": 1}, ranks=[RankStatus(rank=0, state="NoPod", pod="tiny-r0-1")])
    body["status"] = begun.model_dump(mode="json", by_alias=True, exclude_none=True)
    world.api.refuse["get", "pods"] = [error(403, "Forbidden", "may not get pods")]
    await world.put(body)
    await until(lambda: count(world, "done") > 0)
    assert failing(world) is None, "a call may fail once"
    await world.controller.close()
    world.api.refuse["get", "pods"] = [error(403, "Forbidden", "may not get pods")] * 3
    world.api.objects.clear()
    await world.put(body)
    await until(lambda: (found := failing(world)) is not None and found.status == "True")
    assert (found := failing(world)) is not None
    assert (found.reason, "may not get pods" in found.message) == ("Forbidden", True)
    await until(lambda: (found := failing(world)) is not None and found.status == "False")


async def test_what_fails_is_tried_again(world: World) -> None:
    world.api.refuse["patch", "livemigrationjobs"] = [error(503, "ServiceUnavailable", "etcd is busy")]
    await world.put(job_body())
    await until(lambda: len(world.api.names("pods")) == 2)
    assert b'lmj_passes_total{result="failed"} 1.0' in world.metrics.render()


def test_only_a_job_without_pods_gets_another_chance() -> None:
    failed = JobStatus(phase=Phase.FAILED, observed_generation=1)
    assert corrected(failed, 2)
    assert not corrected(failed, 1)
    assert not corrected(failed.model_copy(update={"started": 1.0}), 2)


def test_a_task_for_a_status_that_cannot_be_read_is_refused() -> None:
    body = {**job_body(), "status": {"phase": "Levitating"}}
    place = Place(None, Cache(), None, SETTINGS, MemoryKeys(), None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be read"):
        JobTask(body, place)
