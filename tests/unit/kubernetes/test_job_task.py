"""A job's task: from the first sight of the job to its deletion."""

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import aiohttp
import pytest
from cluster_jobs import SETTINGS, UID, MemoryApi, MemoryKeys, error, job_body

from lmj_api.names import MIGRATE
from lmj_api.protocol import Evaluation, Progress
from lmj_api.spec import LiveMigrationJob
from lmj_api.status import Condition, Incident, IncidentKind, JobStatus, Phase, RankStatus
from lmj_api.view import Resume, View
from lmj_operator.backend.kubernetes.api import LARGE_AT_ONCE
from lmj_operator.backend.kubernetes.backend import KubernetesBackend
from lmj_operator.backend.kubernetes.build.pod import build_pod
from lmj_operator.backend.kubernetes.cache import Cache
from lmj_operator.backend.kubernetes.cluster_job import cluster_job
from lmj_operator.backend.kubernetes.lane import Lane
from lmj_operator.backend.kubernetes.resources import Resource
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.kubernetes.status_store import Replicas, read_status
from lmj_operator.backend.kubernetes.turns import JOB, Turns
from lmj_operator.controller import job_task
from lmj_operator.controller.controller import Controller
from lmj_operator.controller.job_task import SLICES_A_ROUND, JobTask, Place
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.notes import Note, Notebook, notes
from lmj_operator.controller.refusal import corrected
from lmj_operator.plan import Observed, Plan, plan
from lmj_operator.plan.failures.failures import Failure, Remedy
from lmj_operator.plan.failures.incidents import record, settle
from lmj_operator.plan.report.conditions import conditions

pytestmark = pytest.mark.integration

SECONDS = 10.0


class World:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.api = MemoryApi()
        self.controller = Controller()
        self.metrics = Metrics(self.controller.phases, self.controller.replicas)
        self.notebook = Notebook(self.api)  # type: ignore[arg-type]
        keys, cache = MemoryKeys(), self.controller.cache
        self.controller.place = Place(self.api, cache, session, SETTINGS, keys, self.metrics, self.notebook)  # type: ignore[arg-type]

    async def put(self, body: dict[str, Any]) -> None:
        """As a user and the watch would."""
        old = self.api.objects.get(("livemigrationjobs", "tiny"))
        body = {**body, "status": (old or body).get("status", {})}
        body["metadata"] = {**body["metadata"], "resourceVersion": str(self.api.version + 1)}
        self.api.version += 1
        self.api.objects["livemigrationjobs", "tiny"] = body
        await self.controller.job_seen("MODIFIED" if old else "ADDED", body)

    @property
    def status(self) -> JobStatus:
        return self.status_of("tiny")

    def status_of(self, name: str) -> JobStatus:
        return read_status(self.api.objects["livemigrationjobs", name])

    def has_begun(self, name: str) -> bool:
        return bool(self.status_of(name).serials)

    def share(self, **parts: Any) -> None:
        """Have jobs share these."""
        assert self.controller.place is not None
        self.controller.place = replace(self.controller.place, **parts)

    def notes(self) -> list[str]:
        return [body["reason"] for (kind, _), body in self.api.objects.items() if kind == "events"]


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("lmj_operator.controller.job_task.FIRST_RETRY_SECONDS", 0.05)
    async with aiohttp.ClientSession() as session:
        made = World(session)
        posting = asyncio.create_task(made.notebook.run())
        yield made
        await made.controller.close()
        posting.cancel()


def refusal(world: World) -> Condition | None:
    return next((c for c in world.status.conditions if c.type == "ChangeRefused"), None)


def passes(world: World) -> float:
    lines = world.metrics.render().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("lmj_passes_total"))


def count(world: World, result: str) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in world.metrics.render().decode().splitlines()
        if line.startswith(f'lmj_passes_total{{result="{result}"}}')
    )


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


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


async def test_a_job_whose_pods_bring_news_without_end_makes_few_passes_and_another_waits_for_none_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_task, "PASSES_AT_ONCE", 5)
    monkeypatch.setattr(job_task, "START_SECONDS", 0.0)
    await world.put(job_body())
    loud = world.controller._tasks["team", "tiny"].job

    async def make_noise() -> None:
        while True:
            loud.wake()
            await asyncio.sleep(0)

    noise = asyncio.create_task(make_noise())
    began = asyncio.get_running_loop().time()
    await until(lambda: passes(world) >= 5)
    await asyncio.sleep(3 * job_task.PASS_SECONDS)
    quiet = job_body("quiet")
    quiet["metadata"]["uid"] = "22222222-2222-3333-4444-555555555555"
    world.api.objects["livemigrationjobs", "quiet"] = quiet
    seconds = asyncio.get_running_loop().time() - began
    assert 5 < passes(world) <= 6 + seconds / job_task.PASS_SECONDS
    await world.controller.job_seen("ADDED", quiet)
    before = asyncio.get_running_loop().time()
    await until(lambda: "quiet-r1-1" in world.api.names("pods"))
    assert asyncio.get_running_loop().time() - before < 1
    noise.cancel()


async def test_passes_of_jobs_that_fail_again_and_again_are_few_of_all_of_them_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Lane(10.0)
    world.share(stuck=lane)
    monkeypatch.setattr(job_task, "START_SECONDS", 0.0)
    row = {"restartsWithoutProgress": 4, "restartStep": 7, "restarts": 4, "phase": "Recovering", "started": 1.0}
    names = [f"stuck-{number}" for number in range(3)]
    for name in [*names, "tiny"]:
        body = job_body(name)
        body["metadata"]["uid"] = str(uuid5(NAMESPACE_URL, name))
        body["status"] = row if name != "tiny" else {}
        world.api.objects["livemigrationjobs", name] = body
        await world.controller.job_seen("ADDED", body)
    jobs = [world.controller._tasks["team", name].job for name in [*names, "tiny"]]
    waited = list[str]()
    wait = lane.wait

    async def noted(pieces: int = 1) -> None:
        waited.append(JOB.get()[1])
        await wait(pieces)

    monkeypatch.setattr(lane, "wait", noted)

    async def make_noise() -> None:
        while True:
            for job in jobs:
                job.wake()
            await asyncio.sleep(0.01)

    noise = asyncio.create_task(make_noise())
    await until(lambda: len(waited) >= 9)
    noise.cancel()
    assert set(waited) == set(names)
    assert max(waited.count(name) for name in names) <= 4, "in turns"
    leaving = {**job_body(names[0])["metadata"], "uid": jobs[0]._metadata["uid"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    before = waited.count(names[0])
    await world.controller.job_seen("MODIFIED", {**job_body(names[0]), "metadata": leaving, "status": row})
    done = count(world, "done")
    for _ in range(5):
        jobs[0].wake()
        await asyncio.sleep(0.1)
    assert count(world, "done") > done
    assert waited.count(names[0]) <= before + 1, "one that is deleted need not wait"


@pytest.mark.parametrize(
    ("template", "most"), [(None, SLICES_A_ROUND), ({"metadata": {"annotations": {"note": "x" * 20_000}}}, 1)]
)
async def test_of_many_jobs_that_have_news_at_once_few_compute_in_a_round_of_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch, template: dict[str, Any] | None, most: int
) -> None:
    rounds, seen = 0, list[tuple[str, int]]()

    def noted(observed: Observed, now: float) -> Plan:
        seen.append(("plan", rounds))
        return plan(observed, now)

    def read(body: dict[str, Any], settings: Settings) -> LiveMigrationJob:
        seen.append(("read", rounds))
        return cluster_job(body, settings)

    def build(*arguments: Any) -> dict[str, Any]:
        seen.append(("build", rounds))
        return build_pod(*arguments)

    monkeypatch.setattr("lmj_operator.reconcile.plan", noted)
    monkeypatch.setattr("lmj_operator.backend.kubernetes.creation.build_pod", build)

    async def count() -> None:
        nonlocal rounds
        while len(world.api.names("pods")) < 40:
            rounds += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(job_task, "cluster_job", read)
    counting = asyncio.create_task(count())
    bodies = [job_body(f"job-{number}", template=template) for number in range(20)]
    for number, body in enumerate(bodies):
        body["metadata"]["uid"] = f"22222222-2222-3333-4444-{number:012}"
        world.api.objects["livemigrationjobs", body["metadata"]["name"]] = body
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(world.controller.job_seen("ADDED", body) for body in bodies))
        await counting
    assert {what for what, _ in seen} == {"plan", "read", "build"}
    assert len(seen) >= 80
    assert max(Counter(at for _, at in seen).values()) == most


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


async def test_nobody_waits_behind_first_passes_of_jobs_with_large_templates(world: World) -> None:
    world.share(starts=Turns(1, 1))
    ended = asyncio.Event()

    async def hold() -> None:
        JOB.set(("elsewhere", "slow"))
        async with world.api.large.taken():
            await ended.wait()

    holding = [asyncio.create_task(hold()) for _ in range(LARGE_AT_ONCE)]
    note = {"metadata": {"annotations": {"note": "x" * 20_000}}}
    for name, template in {"large": note, "second": note, "tiny": {}}.items():
        body = job_body(name, template=template)
        body["metadata"]["uid"] = str(uuid5(NAMESPACE_URL, name))
        world.api.objects["livemigrationjobs", name] = body
        await world.controller.job_seen("ADDED", body)
        if template:
            await until(partial(world.has_begun, name))
    await until(lambda: world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"])
    ended.set()
    await asyncio.gather(*holding)
    await until(lambda: len(world.api.names("pods")) == 6)


async def test_a_job_waits_for_its_turn_to_make_its_objects(world: World) -> None:
    assert world.controller.place is not None
    turns = Turns(1, 1)
    world.controller.place = replace(world.controller.place, starts=turns)
    async with turns.taken():  # another job is at it
        await world.put(job_body())
        await asyncio.sleep(0.1)
        assert world.api.calls == []
    await until(lambda: world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"])
    async with turns.taken():  # once it has begun it waits for no other
        before = passes(world)
        world.controller.cache.drop_pod(world.api.objects["pods", "tiny-r0-1"])
        await until(lambda: passes(world) > before)


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


def test_notes_tell_what_is_new() -> None:
    before = JobStatus(phase=Phase.RUNNING, started=1.0)
    hit = Incident(
        time="t",
        kind=IncidentKind.POD_GONE,
        rank=1,
        pod="p",
        node="n",
        noticed_by="its peers",
        message="pod p is gone",
        view=1,
        step=5,
    )
    waits = Condition(
        type="PodsWaiting", status="True", reason="Unschedulable", message="pod p: no room", last_transition_time="t"
    )
    down = before.model_copy(
        update={"phase": Phase.RECOVERING, "message": "pod p is gone", "incidents": [hit], "conditions": [waits]}
    )
    assert notes(before, down) == [
        Note("PodGone", "pod p is gone; rank 1 in p on n at step 5, noticed by its peers at t", warning=True),
        Note("Unschedulable", "pod p: no room", warning=True),
        Note("Recovering", "pod p is gone"),
    ]
    mended = hit.model_copy(update={"seconds": 2.0, "steps_lost": 3, "recovery": "view 2: goes on"})
    up = down.model_copy(update={"phase": Phase.RUNNING, "message": "view 2 trains", "incidents": [mended]})
    assert notes(down, up) == [
        Note(
            "Recovered",
            "recovered from PodGone of rank 1 in p on n in 2.00 s, 3 steps done again; noticed by its peers at t at step 5;"
            " view 2: goes on; it was: pod p is gone",
        ),
        Note("Running", "view 2 trains"),
    ]
    assert notes(up, up.model_copy(update={"progress": Progress(step=1, steps=2, epoch=0.5)})) == []


def test_a_loss_that_is_no_number_is_a_condition_and_told_of_once() -> None:
    odd = Evaluation(
        split="validation",
        step=40,
        samples=2,
        loss=float("nan"),
        accuracy=0.5,
        f1=0.5,
        labels=["a", "b"],
        confusion=[[1, 0], [1, 0]],
    )
    fine = odd.model_copy(update={"loss": 0.5, "step": 60})

    def told(old: list[Condition], *evaluations: Evaluation) -> list[Condition]:
        return conditions(old, Phase.RUNNING, "view 1 trains", 1, 100.0, evaluations=evaluations)

    before = told([], fine)
    assert all(c.type != "LossNotFinite" for c in before)
    after = told(before, odd)
    text = "the validation loss of step 40 is not a number; lower training.learningRate or set training.maxGradNorm"
    assert [(c.type, c.status, c.reason, c.message) for c in after[len(before) :]] == [
        ("LossNotFinite", "True", "NotANumber", text)
    ]
    assert notes(JobStatus(conditions=before), JobStatus(conditions=after)) == [Note("LossNotFinite", text, warning=True)]
    assert notes(JobStatus(conditions=after), JobStatus(conditions=told(after, odd))) == []
    assert [c.status for c in told(after, fine) if c.type == "LossNotFinite"] == ["False"]


def test_a_slow_rank_is_a_condition_and_told_of_once() -> None:
    def told(old: list[Condition], slow: str | None) -> list[Condition]:
        return conditions(old, Phase.RUNNING, "view 1 trains", 1, 100.0, slow=slow)

    before = told([], None)
    assert all(c.type != "Straggler" for c in before)
    after = told(before, "rank 1 computes 2.3 times as long")
    (condition,) = after[len(before) :]
    assert (condition.type, condition.status, condition.reason) == ("Straggler", "True", "SlowRank")
    note = Note("Straggler", "rank 1 computes 2.3 times as long", warning=True)
    assert notes(JobStatus(conditions=before), JobStatus(conditions=after)) == [note]
    assert notes(JobStatus(conditions=after), JobStatus(conditions=told(after, "rank 1 computes 2.4 times as long"))) == []
    assert [(c.status, c.reason) for c in told(after, None) if c.type == "Straggler"] == [("False", "NoSlowRank")]


def test_more_failures_than_are_kept_are_told_of_when_they_are_over() -> None:
    failures = tuple(Failure(IncidentKind.WORKER_EXITED, rank, f"p{rank}", "it ended", Remedy.WORKER) for rank in range(14))
    down = JobStatus(incidents=record([], failures, {}, view=1, step=5, now=1.0))
    assert len(down.incidents) == 14
    view = View(number=2, members=[], resume=Resume(step=5), reason="all are back")
    over, lost = settle(down.incidents, view, step=6, done=False, now=3.0, resumed=5)
    up = down.model_copy(update={"incidents": over})
    assert lost == 0
    assert [note.reason for note in notes(down, up)] == ["Recovered"] * 14
    later = up.model_copy(update={"incidents": settle(over, view, step=7, done=False, now=4.0, resumed=5)[0]})
    assert [i.rank for i in later.incidents] == list(range(4, 14))
    assert notes(up, later) == []
    again = record(later.incidents, failures[:1], {}, view=2, step=9, now=5.0)
    assert [i.rank for i in again] == [*range(5, 14), 0]
    endless = again
    for now in range(100):
        endless = record(endless, failures[:1], {}, view=2, step=9, now=6.0 + now)
    assert len(endless) == 50


def test_a_task_for_a_status_that_cannot_be_read_is_refused() -> None:
    body = {**job_body(), "status": {"phase": "Levitating"}}
    place = Place(None, Cache(), None, SETTINGS, MemoryKeys(), None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be read"):
        JobTask(body, place)


def test_a_request_that_is_refused_is_told_of_once() -> None:
    before = JobStatus()
    after = before.model_copy(update={"move_request": "3 now", "move_refused": "there is no rank 3"})
    assert notes(before, after) == [Note("RequestRefused", "there is no rank 3", warning=True)]
    assert notes(after, after) == []
    assert notes(before, before.model_copy(update={"move_request": "1 now"})) == []


def test_another_cut_is_told_of_and_no_warning() -> None:
    recut = Incident(
        time="t", kind=IncidentKind.RECUT, rank=0, pod="p", message="recut from 1 stage to 2 stages at step 7", view=1, step=7
    )
    before = JobStatus(phase=Phase.RUNNING)
    begun = before.model_copy(update={"incidents": [recut]})
    assert notes(before, begun) == [Note("Recut", "recut from 1 stage to 2 stages at step 7")]
    paid = {"steps_lost": 0, "seconds": 1.0, "pause_seconds": 0.05, "pause_by": "workers", "recovery": "view 2: goes on"}
    over = before.model_copy(update={"incidents": [recut.model_copy(update=paid)]})
    story = "training paused for 0.05 s beyond a step, 0 steps done again; view 2: goes on"
    assert notes(begun, over) == [Note("Recut", f"recut from 1 stage to 2 stages at step 7; {story}")]
    condition = Condition(type="Recutting", status="True", reason="Copying", message="how far", last_transition_time="t")
    assert notes(before, before.model_copy(update={"conditions": [condition]})) == [Note("Recutting", "how far")]
