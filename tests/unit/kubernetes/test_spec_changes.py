"""What a change of the spec, or an API server that says no for now, leads to: no more than it must, and no less."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from cluster_jobs import SETTINGS, MemoryApi, MemoryKeys, cluster_job, error, job, job_body, pod_body, running

from lmj_api.cut import Cut
from lmj_api.status import JobStatus, Phase
from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.backend import KubernetesBackend
from lmj_operator.backend.kubernetes.build.pod import build_pod
from lmj_operator.backend.kubernetes.cache import Cache
from lmj_operator.backend.kubernetes.canaries import turns_to_knock
from lmj_operator.backend.kubernetes.labels import DIGEST, SPEC
from lmj_operator.backend.kubernetes.pod_state import pod_observed
from lmj_operator.backend.kubernetes.resources import PODS
from lmj_operator.backend.kubernetes.start_trouble import event_lists
from lmj_operator.backend.kubernetes.status_store import JobGone, StatusStore
from lmj_operator.backend.port import ActionError
from lmj_operator.controller.job_task import JobTask, Place
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.notes import Notebook
from lmj_operator.plan import CreatePod, DeletePod, Observed, PodObserved, PodPhase, PodWait, plan

NOW = 1000.0


class Fixture:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.api, self.now, self.cache = MemoryApi(), NOW, Cache()
        body = self.api.objects["livemigrationjobs", "tiny"] = job_body()
        store = StatusStore(self.api, body, 2.0, self.clock)  # type: ignore[arg-type]
        keys, lists, turns = MemoryKeys(), event_lists(), turns_to_knock()
        self.backend = KubernetesBackend(job(), self.api, self.cache, store, session, SETTINGS, keys, lists, turns, self.clock)  # type: ignore[arg-type]

    def clock(self) -> float:
        return self.now

    def change(self, **spec: Any) -> None:
        body = job_body(**spec)
        body["metadata"]["generation"] = (self.backend.job.metadata.generation or 0) + 1
        self.backend.job = cluster_job(body, SETTINGS)

    async def outdated(self) -> list[bool]:
        return [pod.outdated for pod in (await self.backend.observe()).pods]


@pytest.fixture
async def at() -> AsyncIterator[Fixture]:
    async with aiohttp.ClientSession() as session:
        made = Fixture(session)
        yield made
        await made.backend.close()


async def test_a_pod_that_does_not_run_yet_is_outdated_when_its_template_changes(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    assert await at.outdated() == [False]
    at.change(recovery={"maxRestarts": 1})
    assert await at.outdated() == [False], "the pod would be the same"
    at.change(placement={"nodeSelector": {"pool": "train"}})
    assert await at.outdated() == [True]
    at.change()
    assert await at.outdated() == [False]


async def test_what_a_pod_would_be_is_worked_out_once_for_each_change(at: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template may be large and a job have a thousand pods that wait, and each piece of news makes a pass."""
    built: list[str] = []

    def counted(*arguments: Any) -> dict[str, Any]:
        pod = build_pod(*arguments)
        built.append(pod["metadata"]["name"])
        return pod

    monkeypatch.setattr("lmj_operator.backend.kubernetes.backend.build_pod", counted)
    for rank in (0, 1):
        await at.backend.apply(CreatePod(rank, 1))
    at.change(recovery={"maxRestarts": 1})
    for _ in range(3):
        assert await at.outdated() == [False, False]
    assert sorted(built) == ["tiny-r0-1", "tiny-r1-1"]
    at.change(placement={"nodeSelector": {"pool": "train"}})
    assert await at.outdated() == [True, True]
    assert len(built) == 4


async def test_a_pod_that_runs_is_not_outdated_by_its_template(at: Fixture) -> None:
    at.cache.put_pod(running())
    at.change(placement={"nodeSelector": {"pool": "train"}})
    assert await at.outdated() == [False]


async def test_a_pod_of_an_earlier_operator_is_not_outdated(at: Fixture) -> None:
    at.cache.put_pod(pod_body(phase="Pending"))
    at.change(placement={"nodeSelector": {"pool": "train"}})
    assert await at.outdated() == [False]


def test_the_digest_is_of_the_pod_and_not_of_the_spec_that_it_carries() -> None:
    one, other = (build_pod(job(checkpoint={"keep": keep}), SETTINGS, 0, 1)["metadata"]["annotations"] for keep in (1, 2))
    assert one[SPEC] != other[SPEC]
    assert one[DIGEST] == other[DIGEST]
    assert one[DIGEST] != build_pod(job(), SETTINGS, 1, 1)["metadata"]["annotations"][DIGEST]


def test_an_outdated_pod_is_replaced_without_a_restart() -> None:
    waits = PodWait("Unschedulable", "no node", NOW)
    pod = PodObserved("tiny-r0-1", 0, 1, PodPhase.PENDING, NOW, waits=waits)
    other = PodObserved("tiny-r1-1", 1, 1, PodPhase.PENDING, NOW, waits=waits)
    status = JobStatus(started=NOW, serials={"0": 1, "1": 1})
    seen = Observed("tiny", job().spec, status, (pod, other))
    assert plan(seen, NOW + 1).actions == ()
    made = plan(replace(seen, pods=(replace(pod, outdated=True), other)), NOW + 1)
    assert [str(action) for action in made.actions] == [
        "delete pod tiny-r0-1: replaced by serial 2",
        "create pod r0-2",
    ]
    assert (made.status.serials, made.status.restarts, made.status.incidents) == ({"0": 2, "1": 1}, 0, [])
    again = plan(replace(seen, status=made.status, pods=(replace(pod, phase=PodPhase.TERMINATING), other)), NOW + 2)
    assert {type(action) for action in again.actions} == {DeletePod, CreatePod}
    assert (again.status.serials, again.status.restarts) == ({"0": 2, "1": 1}, 0)


def test_a_pod_that_waits_for_a_moment_only_is_not_told_of() -> None:
    """A scheduler that has not heard yet of the claim that was made just before refuses the pod, and takes it then."""
    waits = PodWait("Unschedulable", 'persistentvolumeclaim "tiny-output" not found', NOW)
    pods = tuple(PodObserved(f"tiny-r{rank}-1", rank, 1, PodPhase.PENDING, NOW, waits=waits) for rank in (0, 1))
    seen = Observed("tiny", job().spec, JobStatus(started=NOW, serials={"0": 1, "1": 1}), pods)
    told = [plan(seen, NOW + after).status for after in (0.5, 1.0, 10.0)]
    assert [[c.reason for c in status.conditions if c.type == "PodsWaiting"] for status in told] == [[], [], ["Unschedulable"]]
    assert ["not found" in status.message for status in told] == [False, False, True]


def test_a_finished_job_takes_note_of_a_change() -> None:
    status = JobStatus(phase=Phase.SUCCEEDED, observed_generation=1, message="done")
    made = plan(Observed("tiny", job().spec, status, generation=2), NOW)
    assert made.status == status.model_copy(update={"observed_generation": 2})
    assert plan(Observed("tiny", job().spec, status, generation=2, deleted=True), NOW).status == status


async def test_what_a_quota_keeps_back_is_made_before_the_pod_when_there_is_room(at: Fixture) -> None:
    at.api.refuse["create", "persistentvolumeclaims"] = [error(403, "Forbidden", "exceeded quota: storage")]
    await at.backend.apply(CreatePod(0, 1))
    seen = (await at.backend.observe()).pods[0]
    assert seen.waits is not None
    assert seen.waits.message == "exceeded quota: storage"
    at.now += 60
    await at.backend.observe()
    assert at.api.names("persistentvolumeclaims") == ["tiny-output"]
    assert at.api.names("pods") == ["tiny-r0-1"]


@pytest.mark.parametrize("kind", ["persistentvolumeclaims", "pods"])
async def test_a_conflict_is_not_an_object_that_is_there(at: Fixture, kind: str) -> None:
    """Quotas that others use at the same time refuse with a conflict."""
    at.api.refuse["create", kind] = [error(409, "Conflict", "the quota has been modified")]
    with pytest.raises(ActionError, match="the quota has been modified"):
        await at.backend.apply(CreatePod(0, 1))
    at.now += 60
    await at.backend.apply(CreatePod(0, 1))
    assert at.api.names(kind) == [{"pods": "tiny-r0-1"}.get(kind, "tiny-output")]


def test_a_claim_that_is_not_bound_is_named() -> None:
    pod = build_pod(job(storage={"output": {"size": "1Gi"}, "data": {"claimName": "corpus"}}), SETTINGS, 0, 1)
    message = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    seen = pod_observed({**pod, "status": {"phase": "Pending", "conditions": [scheduled]}}, None)
    assert seen.waits is not None
    assert seen.waits.message == f"claim tiny-output or corpus is not bound: {message}"


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ErrImagePull", "failed to pull x: not found"),
        ("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: failed to pull x: not found'),
    ],
)
def test_an_image_that_cannot_be_pulled_is_one_thing_to_wait_for(reason: str, message: str) -> None:
    """The kubelet changes between two words for it for as long as it tries."""
    container = {"name": "trainer", "image": "x", "state": {"waiting": {"reason": reason, "message": message}}}
    seen = pod_observed(pod_body(phase="Pending", containerStatuses=[container]), None)
    assert seen.waits is not None
    assert (seen.waits.reason, seen.waits.message) == ("ImagePullBackOff", "failed to pull x: not found")


class BusyClient:
    """As much of an API client as calls need: answers from a list."""

    class configuration:  # noqa: N801
        host = "http://api.example"

    def __init__(self, *answers: tuple[int, dict[str, str]]) -> None:
        self.answers, self.asked = list(answers), 0
        self.rest_client = self

    async def update_params_for_auth(self, *_: object) -> None:
        return

    async def request(self, *_: object, **__: object) -> Any:
        self.asked += 1
        code, headers = self.answers.pop(0)

        class Answer:
            def __init__(self) -> None:
                self.status, self.headers = code, headers

            async def read(self) -> bytes:
                return json.dumps({"reason": "TooManyRequests", "message": "busy"} if code >= 400 else {}).encode()

        return Answer()


async def test_a_busy_server_is_asked_again_after_the_wait_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    busy = (429, {"Retry-After": "2"})
    client = BusyClient(busy, (200, {}))
    await Api(client).get(PODS, "team", "x")  # type: ignore[arg-type]
    assert (client.asked, waits) == (2, [2.0])
    client = BusyClient(*[busy] * 5)
    with pytest.raises(ApiError, match="busy"):
        await Api(client).get(PODS, "team", "x")  # type: ignore[arg-type]
    assert client.asked == 3
    client = BusyClient((500, {"Retry-After": "2"}))
    with pytest.raises(ApiError, match="busy"):
        await Api(client).get(PODS, "team", "x")  # type: ignore[arg-type]
    assert client.asked == 1


async def test_failures_with_successes_between_them_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that fails now and then is not one that is down: the job does not wait longer each time."""
    waits: list[float] = []
    api = MemoryApi()
    body = api.objects["livemigrationjobs", "tiny"] = job_body()
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    async with aiohttp.ClientSession() as session:
        notebook = Notebook(api)  # type: ignore[arg-type]
        place = Place(api, Cache(), session, SETTINGS, MemoryKeys(), Metrics(list), notebook)  # type: ignore[arg-type]
        task = JobTask(body, place)
        lives = iter([0, 0, 0, 1, 0])

        async def live() -> None:
            written = next(lives, None)
            if written is None:
                raise JobGone("gone")
            task._store.writes += written
            raise error(500)

        monkeypatch.setattr(task, "_live", live)
        monkeypatch.setattr(asyncio, "sleep", noted)
        await task.run()
    assert waits == [0.5, 1.0, 2.0, 0.5, 1.0]


async def test_a_pod_is_made_of_its_cut_and_not_outdated_by_another(at: Fixture) -> None:
    at.change(pipeline={"stages": 3, "microBatches": 2})
    await at.backend.apply(CreatePod(1, 2, cut=Cut(stages=2)))
    await at.backend.apply(CreatePod(1, 3))
    pods = (await at.backend.observe()).pods
    assert [(pod.name, pod.cut, pod.outdated) for pod in pods] == [
        ("tiny-r1-2", Cut(stages=2), False),
        ("tiny-r1-3", Cut(stages=3), False),
    ]


async def test_a_cut_that_a_job_cannot_have_in_pods_is_no_failure_of_the_job(at: Fixture) -> None:
    """One rank may have its results in its pod; two have to share them."""
    at.change(pipeline={"stages": 1, "microBatches": 2}, storage={})
    await at.backend.apply(CreatePod(0, 2, cut=Cut(stages=2)))
    (pod,) = (await at.backend.observe()).pods
    assert (pod.phase, pod.cut, pod.exit_code) == (PodPhase.GONE, Cut(stages=2), 2)
    assert "2 ranks share their checkpoints" in (pod.exit_message or "")
