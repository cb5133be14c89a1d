"""The backend: what it sees, what it does, and what it does not ask the API server for."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cluster_jobs import SETTINGS, UID, MemoryApi, error, job, job_body, pod_body, running

from lmj_api.protocol import USER_ERROR, AgentState, Event, EventKind, WorkerPhase, WorkerState
from lmj_api.spec.migration import MigrationStrategy
from lmj_api.status import JobStatus, Phase, RankStatus, StandbyState, StandbyStatus
from lmj_operator.backend.kubernetes import backend as module
from lmj_operator.backend.kubernetes.api import ApiError
from lmj_operator.backend.kubernetes.backend import KubernetesBackend
from lmj_operator.backend.kubernetes.cache import Cache
from lmj_operator.backend.kubernetes.children import Children
from lmj_operator.backend.kubernetes.status_store import StatusStore
from lmj_operator.backend.port import ActionError
from lmj_operator.plan import CreatePod, DeletePod, Drain, EnlistPod, LeaveView, PodPhase, StartWorker, Stay


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Fixture:
    """A backend between an API server in memory and an agent at 127.0.0.1."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.api, self.clock = MemoryApi(), Clock()
        self.woken: list[tuple[str, str]] = []
        self.cache = Cache(self.woken.append)
        body = self.api.objects["livemigrationjobs", "tiny"] = job_body()
        store = StatusStore(self.api, body, 2.0, self.clock)  # type: ignore[arg-type]
        self.backend = KubernetesBackend(job(), self.api, self.cache, store, session, SETTINGS, self.clock)  # type: ignore[arg-type]
        self.told: list[str] = []
        self.state = AgentState(pod="tiny-r0-1", rank=0, started=1.0)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {await self.backend.children.token(self.backend.job)}":
            return web.Response(status=401)
        if request.path == "/v1/events":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(Event(seq=1, time=0, kind=EventKind.READY).to_json().encode() + b"\n")
            await asyncio.Event().wait()
        self.told.append(f"{request.method} {request.path}")
        return web.Response(text=self.state.to_json())

    def calls(self, verb: str, plural: str) -> int:
        return sum(call[:2] == (verb, plural) for call in self.api.calls)


@pytest.fixture
async def at(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fixture]:
    async with aiohttp.ClientSession() as session:
        made = Fixture(session)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", made.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        monkeypatch.setattr(module, "AGENT_PORT", runner.addresses[0][1])
        yield made
        await made.backend.close()
        await runner.cleanup()


async def test_pods_made_at_the_same_time_make_the_rest_once(at: Fixture) -> None:
    await asyncio.gather(at.backend.apply(CreatePod(0, 1)), at.backend.apply(CreatePod(1, 1)))
    assert at.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"]
    children = ("secrets", "services", "networkpolicies", "poddisruptionbudgets", "persistentvolumeclaims")
    assert [at.api.names(kind) for kind in children] == [
        ["tiny-token"],
        ["tiny-trainers"],
        ["tiny-trainers"],
        ["tiny-trainers"],
        ["tiny-output"],
    ]
    assert len(at.api.calls) == 7


async def test_a_pod_is_observed_before_the_watch_tells_of_it_and_made_once(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    await at.backend.apply(CreatePod(0, 1))
    assert [p.name for p in (await at.backend.observe()).pods] == ["tiny-r0-1"]
    assert at.api.names("pods") == ["tiny-r0-1"]


async def test_the_agent_is_asked_and_heard_and_the_api_server_is_not(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    at.cache.put_pod(running())
    seen = (await at.backend.observe()).pods[0]
    assert seen.phase is PodPhase.RUNNING
    assert seen.agent is not None
    await at.backend.apply(StartWorker("tiny-r0-1", 1))
    await at.backend.apply(LeaveView("tiny-r0-1", 1))
    await at.backend.apply(Drain("tiny-r0-1"))
    assert at.told == ["GET /v1/state", "PUT /v1/worker", "POST /v1/leave", "POST /v1/drain"]
    heard = at.backend.events()
    async with asyncio.timeout(5):
        event = (await anext(heard)).event
    assert event is not None
    assert event.kind is EventKind.READY
    before = len(at.api.calls)
    for _ in range(20):
        await at.backend.observe()
    assert len(at.api.calls) == before


async def test_a_silent_agent_is_unreachable_since_it_was_first_missed(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    at.cache.put_pod(running(ip="127.0.0.1"))
    await at.backend.observe()
    at.cache.put_pod(running(ip="127.255.255.254"))  # nobody listens there
    first = (await at.backend.observe()).pods[0]
    at.clock.now += 5
    second = (await at.backend.observe()).pods[0]
    assert first.agent is None
    assert first.unreachable_since == second.unreachable_since == 1000.0
    assert not first.dark  # its machine is there, and says that nobody listens


@pytest.mark.skipif(sys.platform != "linux", reason="others refuse what they have no room for")
async def test_a_machine_that_takes_no_connection_is_dark(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.2", module.AGENT_PORT), backlog=0))
        for _ in range(2):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        at.cache.put_pod(running(ip="127.0.0.2"))
        seen = (await at.backend.observe()).pods[0]
        assert (seen.agent, seen.dark, seen.unreachable_since) == (None, True, 1000.0)
    at.cache.put_pod(running(ip="127.0.0.1"))
    seen = (await at.backend.observe()).pods[0]
    assert seen.agent is not None
    assert not seen.dark


async def test_pods_of_an_earlier_job_of_this_name_are_not_ours(at: Fixture) -> None:
    at.cache.put_pod(pod_body(owner="another"))
    assert (await at.backend.observe()).pods == ()
    at.api.objects["pods", "tiny-r0-1"] = pod_body(owner="another")
    with pytest.raises(ActionError, match="pod tiny-r0-1 of an earlier job is not gone yet"):
        await at.backend.apply(CreatePod(0, 1))
    del at.api.objects["pods", "tiny-r0-1"]
    at.clock.now += 2
    await at.backend.apply(CreatePod(0, 1))
    assert at.api.names("pods") == ["tiny-r0-1"]


async def test_an_agent_whose_pod_goes_meanwhile_is_not_waited_for(at: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    await at.backend.apply(CreatePod(0, 1))
    pod = running()
    at.cache.put_pod(pod)
    asked = asyncio.Event()

    async def never(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(at.backend._agents, "state", never)
    looking = asyncio.create_task(at.backend.observe())
    await asyncio.wait_for(asked.wait(), 5)
    at.cache.drop_pod(pod)
    [seen] = (await asyncio.wait_for(looking, 5)).pods
    assert (seen.name, seen.agent) == ("tiny-r0-1", None)
    assert (await at.backend.observe()).pods == ()


async def test_an_earlier_jobs_secret_is_not_taken(at: Fixture) -> None:
    at.api.objects["secrets", "tiny-token"] = {
        "metadata": {"name": "tiny-token", "ownerReferences": [{"uid": "another", "controller": True}]},
        "data": {"token": "eA=="},
    }
    with pytest.raises(ActionError, match="is not of this job"):
        await at.backend.apply(CreatePod(0, 1))


async def test_an_operator_that_starts_anew_finds_the_token_and_makes_nothing_twice(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    token = await at.backend.children.token(at.backend.job)
    at.backend.children.__init__(at.api, SETTINGS)  # type: ignore[misc]
    assert await at.backend.children.token(at.backend.job) == token
    at.cache.drop_pod(at.cache.pods(("team", "tiny"))[0])
    at.api.objects["pods", "tiny-r0-1"]["metadata"]["ownerReferences"] = [{"uid": UID, "controller": True}]
    await at.backend.apply(CreatePod(0, 1))
    assert [p.name for p in (await at.backend.observe()).pods] == ["tiny-r0-1"]


async def test_a_used_up_quota_is_no_matter_for_what_is_there_already(at: Fixture) -> None:
    """A server asks the quota before it looks whether there is one of the name."""
    await at.backend.apply(CreatePod(0, 1))
    spent = error(403, "Forbidden", "exceeded quota: persistentvolumeclaims=1")
    at.api.refuse["create", "persistentvolumeclaims"], at.api.refuse["create", "secrets"] = [spent], [spent]
    secret = at.api.objects["secrets", "tiny-token"]
    secret["metadata"]["ownerReferences"] = [{"uid": UID, "controller": True}]
    at.backend.children.__init__(at.api, SETTINGS)  # type: ignore[misc]
    await at.backend.apply(CreatePod(1, 1))
    assert at.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"]
    assert (await at.backend.observe()).pods[-1].waits is None
    assert at.api.objects["secrets", "tiny-token"] == secret
    await at.backend.apply(CreatePod(0, 2))
    assert at.calls("create", "persistentvolumeclaims") == 2, "once by each operator"


@pytest.mark.parametrize("kind", ["persistentvolumeclaims", "secrets"])
async def test_a_used_up_quota_is_waited_for_by_what_is_not_there(at: Fixture, kind: str) -> None:
    at.api.refuse["create", kind] = [error(403, "Forbidden", f"exceeded quota: {kind}=1")]
    await at.backend.apply(CreatePod(0, 1))
    seen = (await at.backend.observe()).pods[0]
    assert seen.waits is not None
    assert seen.waits.message == f"exceeded quota: {kind}=1"
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


def node(ready: str, since: str = "1970-01-01T00:16:40Z") -> dict[str, object]:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": since}
    return {"metadata": {"name": "node-1"}, "status": {"conditions": [condition]}}


async def test_nodes_are_named_while_a_request_was_not_taken_up(at: Fixture) -> None:
    at.backend.move_request = "1 to=n1"
    assert (await at.backend.observe()).nodes == frozenset(), "where nodes may not be watched none is known"
    at.cache.put_node(node("True"))
    gone = {"metadata": {"name": "gone"}}
    at.cache.put_node(gone)
    at.cache.drop_node(gone)
    assert (await at.backend.observe()).nodes == {node("True")["metadata"]["name"]}  # type: ignore[index]
    await at.backend.write_status(JobStatus(move_request="1 to=n1", move_refused="no"))
    assert (await at.backend.observe()).nodes == frozenset()
    at.backend.move_request = None
    assert (await at.backend.observe()).nodes == frozenset()


async def test_pods_of_a_dead_node_are_removed_by_force_when_it_is_dead_for_long(at: Fixture) -> None:
    at.api.objects["pods", "tiny-r0-1"] = running()
    leaving = running()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    at.cache.put_pod(leaving)
    at.cache.put_node(node("Unknown"))
    at.clock.now += 59
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    assert at.api.deletions == []
    at.clock.now += 1
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    assert at.api.deletions == [("tiny-r0-1", 0)]


@pytest.mark.parametrize(
    ("strategy", "grace", "ends", "phase"),
    [
        ("Live", 60, 1060, PodPhase.RUNNING),
        ("Live", 30, 1200, PodPhase.TERMINATING),  # less time than its agent thinks
        ("Live", 60, 900, PodPhase.TERMINATING),  # its time is over
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
    at.state = at.state.model_copy(update={"leaving": True})
    at.clock.now = told_at
    seen = (await at.backend.observe()).pods[0]
    assert (seen.phase, seen.leaves) == (PodPhase.RUNNING, leaves)


async def test_a_pod_of_a_doomed_node_leaves_at_once(at: Fixture) -> None:
    await at.backend.write_status(JobStatus(ranks=[RankStatus(rank=0, state="Running", pod="tiny-r0-1")]))
    pod = running()
    pod["metadata"] |= {"deletionTimestamp": "1970-01-01T00:17:40Z", "deletionGracePeriodSeconds": 60}
    at.cache.put_pod(pod)
    doomed = node("True")
    doomed["spec"] = {"taints": [{"key": "spot", "effect": "NoExecute"}]}
    at.cache.put_node(doomed)
    assert (await at.backend.observe()).pods[0].phase is PodPhase.TERMINATING


async def test_nodes_wake_the_jobs_that_run_there(at: Fixture) -> None:
    at.cache.put_pod(running())
    at.cache.put_node(node("True"))
    at.woken.clear()
    at.cache.put_node(node("True", "2026-01-01T00:00:00Z"))
    assert at.woken == []
    at.cache.put_node(node("Unknown"))
    at.cache.drop_node(node("Unknown"))
    assert at.woken == [("team", "tiny")] * 2
    assert (await at.backend.observe()).pods[0].phase is PodPhase.GONE


async def test_a_pod_that_changed_in_nothing_that_matters_wakes_nobody(at: Fixture) -> None:
    at.cache.put_pod(running())
    at.woken.clear()
    same = running()
    same["metadata"]["annotations"] = {"x": "y"}
    at.cache.put_pod(same)
    assert at.woken == []
    at.cache.drop_pod(running(uid="an earlier one"))
    assert len(at.cache.pods(("team", "tiny"))) == 1


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
    assert {kind for kind, _ in at.api.objects} & {"networkpolicies", "secrets"} == set()
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
    successor = Children(at.api, SETTINGS)  # type: ignore[arg-type]
    at.api.objects["services", "tiny-trainers"]["metadata"]["ownerReferences"] = []
    await successor.release(at.backend.job)
    assert {kind for kind, _ in at.api.objects} == {"livemigrationjobs", "pods", "persistentvolumeclaims", "services"}
    assert at.calls("delete", "services") == 0


async def test_what_was_made_behind_an_error_is_not_made_again_and_the_wait_gets_no_longer(at: Fixture) -> None:
    kinds = ("secrets", "networkpolicies", "poddisruptionbudgets", "services", "persistentvolumeclaims")
    for number, kind in enumerate(kinds):
        verb = "create" if kind in ("secrets", "persistentvolumeclaims") else "patch"
        at.api.refuse[verb, kind] = [error(500, "InternalError", f"no {kind}")] * number
    for kind in kinds[1:]:
        with pytest.raises(ActionError, match=f"no {kind}"):
            await at.backend.apply(CreatePod(0, 1))
        at.clock.now += 1.1
    await at.backend.apply(CreatePod(0, 1))
    assert at.api.names("pods") == ["tiny-r0-1"]
    assert [sum(call[1] == kind for call in at.api.calls) for kind in kinds] == [1, 2, 3, 4, 5]


async def test_a_standby_is_made_and_its_labels_follow_what_it_becomes(at: Fixture) -> None:
    await at.backend.apply(CreatePod(None, 3))
    made = at.api.objects["pods", "tiny-s-3"]
    assert made["metadata"]["labels"]["lmj.dev/role"] == "standby"
    assert "lmj.dev/rank" not in made["metadata"]["labels"]
    (seen,) = (await at.backend.observe()).pods
    assert (seen.name, seen.rank, seen.serial, seen.unlisted) == ("tiny-s-3", None, 3, True)
    for _ in range(2):
        await at.backend.apply(EnlistPod("tiny-s-3", 1, 5))
    labels = at.api.objects["pods", "tiny-s-3"]["metadata"]["labels"]
    assert {key: labels[f"lmj.dev/{key}"] for key in ("role", "rank", "serial")} == {"role": "member", "rank": "1", "serial": "5"}
    assert not (await at.backend.observe()).pods[0].unlisted
    await at.backend.apply(EnlistPod("tiny-s-4", 1, 6))  # gone meanwhile
    assert at.api.names("pods") == ["tiny-s-3"]


async def test_labels_that_cannot_be_set_now_are_an_action_error(at: Fixture) -> None:
    await at.backend.apply(CreatePod(None, 1))
    at.api.refuse["patch", "pods"] = [error(500, "InternalError", "no labels")]
    with pytest.raises(ActionError, match="no labels"):
        await at.backend.apply(EnlistPod("tiny-s-1", 1, 2))
    assert (await at.backend.observe()).pods[0].unlisted


async def test_a_standby_that_the_cache_lacks_is_looked_for_unless_it_was_never_made(at: Fixture) -> None:
    at.api.objects["pods", "tiny-s-1"] = running("tiny-s-1")
    wanted = [StandbyStatus(pod="tiny-s-1", state=StandbyState.WARM), StandbyStatus(pod="tiny-s-2")]
    await at.backend.write_status(JobStatus(standbys=wanted))
    assert [p.name for p in (await at.backend.observe()).pods] == ["tiny-s-1"]
    assert at.calls("get", "pods") == 1


async def test_a_standby_that_is_made_from_another_template_by_now_is_outdated(at: Fixture) -> None:
    await at.backend.apply(CreatePod(None, 1))
    assert not (await at.backend.observe()).pods[0].outdated
    at.backend.job = job(template={"metadata": {"labels": {"team": "other"}}})
    at.backend.job = at.backend.job.model_copy(update={"metadata": at.backend.job.metadata.model_copy(update={"generation": 2})})
    assert (await at.backend.observe()).pods[0].outdated


async def test_a_pod_that_does_not_run_yet_is_outdated_when_its_node_is_dead_for_long(at: Fixture) -> None:
    """Nobody would start it, and the API server takes minutes to end it."""
    pod = running()
    pod["status"] = {"phase": "Pending"}
    at.cache.put_pod(pod)
    at.cache.put_node(node("True"))
    assert not (await at.backend.observe()).pods[0].outdated
    at.cache.put_node(node("Unknown"))
    at.clock.now += 59
    assert not (await at.backend.observe()).pods[0].outdated
    at.clock.now += 1
    assert (await at.backend.observe()).pods[0].outdated


async def test_a_changed_placement_or_taint_is_seen_in_the_next_pass(at: Fixture) -> None:
    pod, body = running(), node("True")
    pod["spec"]["nodeSelector"] = {"pool": "a"}
    body["metadata"]["labels"] = {"pool": "a"}  # type: ignore[index]
    at.cache.put_pod(pod)
    at.cache.put_node(body)
    at.backend.job = job(placement={"stages": [{"stage": 0, "nodeSelector": {"pool": "a"}}]})
    assert (await at.backend.observe()).pods[0].misplaced is None
    at.backend.job = job(placement={"stages": [{"stage": 0, "nodeSelector": {"pool": "b"}}]})
    assert (await at.backend.observe()).pods[0].misplaced == "its placement asks for pool=b"
    at.woken.clear()
    at.cache.put_node({**body, "spec": {"taints": [{"key": "kubevirt.io/drain", "effect": "NoSchedule"}]}})
    assert at.woken == [("team", "tiny")]
    assert (await at.backend.observe()).pods[0].node_leaving == "node node-1 is tainted kubevirt.io/drain:NoSchedule"


async def test_what_may_be_evicted_follows_the_spec_without_a_new_pod(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    await at.backend.write_status(JobStatus(started=at.clock.now))
    budgets = at.calls("patch", "poddisruptionbudgets")
    await at.backend.observe()
    assert at.calls("patch", "poddisruptionbudgets") == budgets
    at.backend.job = job(migration={"strategy": "Never"})
    await at.backend.observe()
    await at.backend.observe()
    assert at.calls("patch", "poddisruptionbudgets") == budgets + 1
    assert at.api.objects["poddisruptionbudgets", "tiny-trainers"]["spec"]["minAvailable"] == 1


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
    at.clock.now += module.BUDGET_AGAIN_SECONDS
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


async def test_a_budget_of_before_a_failover_is_as_the_spec_wants_it_now(at: Fixture) -> None:
    """The spec may have changed while no operator was there."""
    await at.backend.write_status(JobStatus(started=at.clock.now))
    for _ in range(3):
        await at.backend.observe()
    writes = [call[:2] for call in at.api.calls if call[0] in ("create", "patch") and call[1] != "livemigrationjobs"]
    assert writes == [("patch", "poddisruptionbudgets")]


async def test_a_pod_that_was_refused_is_made_on_the_node_that_was_named_all_the_same(at: Fixture) -> None:
    at.api.refuse["create", "pods"] = [error(403, "Forbidden", "exceeded quota")]
    await at.backend.apply(CreatePod(1, 2, ("node-1",), "node-3"))
    at.clock.now += 60
    await at.backend.observe()
    made = at.api.objects["pods", "tiny-r1-2"]["spec"]["affinity"]["nodeAffinity"]
    fields = made["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchFields"]
    assert [(f["operator"], f["values"]) for f in fields] == [("NotIn", ["node-1"]), ("In", ["node-3"])]
