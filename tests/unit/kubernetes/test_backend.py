"""The backend: what it sees, what it does, and what it does not ask the API server for."""

import asyncio
import contextlib
import socket
import sys

import pytest
from backend_fixture import Fixture
from cluster_jobs import SETTINGS, UID, pod_body, running

from lmj_api.protocol import EventKind
from lmj_operator.backend.kubernetes import backend as module
from lmj_operator.backend.port import ActionError
from lmj_operator.plan import CreatePod, Drain, LeaveView, PodPhase, StartWorker

pytestmark = pytest.mark.integration


async def test_pods_made_at_the_same_time_make_the_rest_once(at: Fixture) -> None:
    await asyncio.gather(at.backend.apply(CreatePod(0, 1)), at.backend.apply(CreatePod(1, 1)))
    assert at.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"]
    children = ("services", "networkpolicies", "poddisruptionbudgets", "persistentvolumeclaims")
    assert [at.api.names(kind) for kind in children] == [
        ["tiny-trainers"],
        ["tiny-trainers"],
        ["tiny-trainers"],
        ["tiny-output"],
    ]
    assert len(at.api.calls) == 6


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
    del at.api.objects["pods", "tiny-r0-1"]
    [seen] = (await asyncio.wait_for(looking, 5)).pods
    assert (seen.name, seen.agent) == ("tiny-r0-1", None)
    assert (await at.backend.observe()).pods == ()


async def test_an_operator_that_starts_anew_makes_nothing_twice(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    at.backend.children.__init__(at.api, at.cache.children, SETTINGS)  # type: ignore[misc]
    at.cache.drop_pod(at.cache.pods(("team", "tiny"))[0])
    at.api.objects["pods", "tiny-r0-1"]["metadata"]["ownerReferences"] = [{"uid": UID, "controller": True}]
    await at.backend.apply(CreatePod(0, 1))
    assert [p.name for p in (await at.backend.observe()).pods] == ["tiny-r0-1"]


async def test_a_pod_that_changed_in_nothing_that_matters_wakes_nobody(at: Fixture) -> None:
    at.cache.put_pod(running())
    at.woken.clear()
    same = running()
    same["metadata"]["annotations"] = {"x": "y"}
    at.cache.put_pod(same)
    assert at.woken == []
    at.cache.drop_pod(running(uid="an earlier one"))
    assert len(at.cache.pods(("team", "tiny"))) == 1
