"""The agent's HTTP interface."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from signing import KEY, POD, SignedClient

from lmj_api.cut import Cut
from lmj_api.protocol import AgentState, EventKind, Holding, Recut, RecutRequest, WorkerPhase
from lmj_api.signed import CHALLENGE, SCHEME, digest_of, is_challenge
from lmj_api.topology import Topology
from lmj_api.view import Member
from lmj_operator.backend.caller import Caller
from lmj_trainer.agent.gate import Gate
from lmj_trainer.agent.metrics import render
from lmj_trainer.agent.server import LARGEST_BODY, make_app

pytestmark = pytest.mark.integration

Make = Callable[..., Any]
SCRAPER, TOPOLOGY = "a scraper's", Topology(2, 2)
PATHS = (
    ("GET", "/v1/state"),
    ("GET", "/v1/token"),
    ("GET", "/v1/events"),
    ("GET", "/metrics"),
    ("PUT", "/v1/worker"),
    ("PUT", "/v1/view"),
    ("POST", "/v1/leave"),
    ("POST", "/v1/look"),
    ("POST", "/v1/source"),
    ("PUT", "/v1/follower"),
    ("PUT", "/v1/recut"),
    ("POST", "/v1/handover"),
    ("POST", "/v1/pause"),
    ("POST", "/v1/stay"),
    ("POST", "/v1/drain"),
    ("GET", "/nothing"),
)


@pytest.fixture
async def client(rig: Make) -> AsyncIterator[Callable[..., Any]]:
    clients = []

    async def make(*acts: str) -> tuple[Any, SignedClient]:
        it, gate = rig(*acts), Gate("", POD, [KEY.public])
        client = TestClient(TestServer(make_app(it.supervisor, gate, TOPOLOGY, SCRAPER)))
        await client.start_server()
        clients.append((it, client))
        return it, SignedClient(client, gate)

    yield make
    for it, each in clients:
        await it.supervisor.stop(0)
        await each.close()


async def state(response: ClientResponse) -> AgentState:
    assert response.status == 200, await response.text()
    return AgentState.model_validate_json(await response.text())


async def refused(response: ClientResponse, status: int, part: str) -> None:
    assert response.status == status
    assert part in (await response.json())["error"]


async def test_who_does_not_sign_gets_no_answer(client: Make) -> None:
    it, http = await client("")
    for header in ("", "Bearer", f"Bearer {SCRAPER}x", SCHEME, f"{SCHEME} key=x", "Bearer \xff", "x" * 8000):
        for method, path in PATHS:
            response = await http.client.request(method, path, headers={"Authorization": header}, data=b"{}")
            await refused(response, 401, "the request is not signed")
            assert response.headers["WWW-Authenticate"] == SCHEME
    assert not it.supervisor.state.draining
    response = await http.client.get("/healthz")
    assert (response.status, await response.text()) == (200, "ok\n")


async def test_a_header_without_end_is_an_error_of_who_sends_it(client: Make) -> None:
    _, http = await client("")
    response = await http.client.get("/v1/state", headers={"Authorization": "x" * 10_000})
    assert response.status == 400
    assert (await state(await http.get("/v1/state"))).pod


async def test_each_answer_tells_what_the_next_request_is_to_be_signed_over(client: Make) -> None:
    _, http = await client("")
    caller = Caller(KEY, "", POD)
    for expected in (401, 200, 200):
        headers = {"Authorization": caller.authorization("GET", "/v1/state", digest_of(b""))}
        answer = await http.client.get("/v1/state", headers=headers)
        assert answer.status == expected
        assert is_challenge(answer.headers[CHALLENGE])
        caller.heard(answer.headers[CHALLENGE])
        again = await http.client.get("/v1/state", headers=headers)
        assert again.status == 401, "it counted once"
    async with asyncio.timeout(20), http.get("/v1/events") as stream:
        assert stream.headers[CHALLENGE] == caller.challenge


async def test_another_body_than_the_one_that_was_signed_does_nothing(client: Make) -> None:
    it, http = await client("ready wait")
    caller = Caller(KEY, "", POD)
    caller.heard((await http.client.get("/v1/state")).headers[CHALLENGE])
    headers = {"Authorization": caller.authorization("PUT", "/v1/worker", digest_of(b'{"incarnation": 1}'))}
    await refused(await http.client.put("/v1/worker", data=b'{"incarnation": 2}', headers=headers), 401, "its body is not")
    assert it.supervisor.state.worker.incarnation == 0


async def test_a_scraper_reads_metrics_and_nothing_else(client: Make) -> None:
    it, http = await client("")
    headers = {"Authorization": f"Bearer {SCRAPER}"}
    answer = await http.client.get("/metrics", headers=headers)
    assert (answer.status, "lmj_events_total" in await answer.text()) == (200, True)
    for method, path in PATHS:
        if path != "/metrics":
            await refused(await http.client.request(method, path, headers=headers, data=b"{}"), 401, "not signed")
    await refused(await http.client.post("/metrics", headers=headers), 401, "not signed")
    closed = TestClient(TestServer(make_app(it.supervisor, Gate("", POD, [KEY.public]), TOPOLOGY)))
    await closed.start_server()
    for nobody in ("Bearer None", "Bearer ", "Bearer", ""):
        assert (await closed.get("/metrics", headers={"Authorization": nobody})).status == 401
    await closed.close()


async def test_worker_view_drain(client: Make, make_view: Make) -> None:
    it, http = await client("ready view drain exit:0")
    assert (await state(await http.get("/v1/state"))).worker.incarnation == 0
    assert (await state(await http.put("/v1/worker", json={"incarnation": 2}))).worker.incarnation == 2
    assert (await state(await http.put("/v1/worker", json={"incarnation": 2}))).worker.incarnation == 2
    await refused(await http.put("/v1/worker", json={"incarnation": 1}), 409, "older than worker 2")
    await it.until(lambda s: s.worker.phase is WorkerPhase.READY)
    view = make_view(1, incarnation=2)
    await refused(await http.put("/v1/view", data=make_view(1).to_json()), 409, "for worker 1, but worker 2 runs")
    assert (await state(await http.put("/v1/view", data=view.to_json()))).view == view
    assert (await state(await http.put("/v1/view", data=view.to_json()))).view == view
    await it.until(lambda s: s.worker.phase is WorkerPhase.RUNNING)
    assert (await state(await http.post("/v1/drain"))).draining
    assert (await state(await http.post("/v1/drain"))).draining
    await it.until(lambda s: s.worker.exit)
    assert (await state(await http.get("/v1/state"))).worker.phase is WorkerPhase.DRAINED


async def test_a_source_is_let_in(client: Make) -> None:
    it, http = await client("")
    address = f"tls://10.0.0.1:9463/41234#{'Q' * 43}"
    for _ in range(2):
        await state(await http.post("/v1/source", json={"address": address}))
    assert it.supervisor.peers.addresses == [address]
    await refused(await http.post("/v1/source", json={"address": "uv://10.0.0.1:4"}), 400, "is not the address of a worker")
    await refused(await http.post("/v1/source", json={}), 400, "not a Source: address")


async def test_a_look_is_asked_for(client: Make) -> None:
    it, http = await client("")
    assert (await state(await http.post("/v1/look", json={"number": 3, "names": ["step-000000007-v3"]}))).looked == 0
    assert await asyncio.wait_for(it.supervisor.looks.next(), 5) == (3, ("step-000000007-v3",))
    await refused(await http.post("/v1/look", json={"number": 0}), 400, "not a LookThrough: number")
    await refused(await http.post("/v1/look", json={"number": 1, "names": ["x"] * 9}), 400, "not a LookThrough: names")


async def test_leaving_a_view_tells_what_is_in_memory(client: Make, make_view: Make) -> None:
    it, http = await client("ready view leave wait")
    await http.post("/v1/leave", json={"number": 1})  # nobody is there to leave anything
    await http.put("/v1/worker", json={"incarnation": 1})
    await it.until(lambda s: s.worker.phase is WorkerPhase.READY)
    await http.put("/v1/view", data=make_view(1).to_json())
    await it.until(lambda s: s.worker.phase is WorkerPhase.RUNNING)
    assert (await state(await http.post("/v1/leave", json={"number": 1}))).view == make_view(1)
    worker = (await it.until(lambda s: s.worker.phase is WorkerPhase.READY)).worker
    assert (worker.view, worker.lost, worker.holding) == (1, "told to leave", Holding(step=7, prepared=True))


async def test_what_a_newer_operator_says_besides_is_ignored(client: Make) -> None:
    it, http = await client("ready view leave wait")
    answer = await http.put("/v1/worker", json={"incarnation": 1, "newer": {"than": "this"}})
    assert answer.status == 200
    await it.until(lambda s: s.worker.incarnation == 1)


async def test_mistakes(client: Make) -> None:
    _, http = await client("")
    await refused(await http.put("/v1/worker", data=b"{"), 400, "not a StartWorker")
    await refused(await http.put("/v1/worker", json={"incarnation": 0}), 400, "incarnation")
    await refused(await http.put("/v1/view", json={"number": 1}), 400, "not a View")
    await refused(await http.put("/v1/view", data=b"x" * (LARGEST_BODY + 1)), 413, "")
    await refused(await http.post("/v1/leave", json={"number": 0}), 400, "not a ViewNumber: number")
    await refused(await http.get("/nothing"), 404, "Not Found")
    await refused(await http.get("/v1/drain"), 405, "Not Allowed")
    await refused(await http.get("/v1/events?after=x"), 400, "not the number of an event")
    await refused(await http.get("/v1/events?after=7"), 400, "beyond event 0")


async def test_events_come_live(client: Make, make_view: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmj_trainer.agent.server.KEEP_ALIVE_SECONDS", 0.2)
    it, http = await client("ready view err:bad exit:1")

    async def read(after: int, enough: EventKind | None) -> tuple[list[dict[str, Any]], int]:
        events, blanks = [], 0
        async with asyncio.timeout(20), http.get(f"/v1/events?after={after}") as response:
            assert response.headers["Content-Type"] == "application/x-ndjson"
            async for line in response.content:
                if line == b"\n":
                    blanks += 1
                else:
                    events.append(json.loads(line))
                if enough and events and events[-1]["kind"] == enough:
                    break
                if blanks > 2 and enough is None:
                    break
        return events, blanks

    reading = asyncio.create_task(read(0, EventKind.WORKER_EXITED))
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is WorkerPhase.READY)
    it.supervisor.put_view(make_view(1))
    events, _ = await reading
    assert [e["kind"] for e in events] == ["workerStarted", "ready", "joined", "workerExited"]
    assert [e["seq"] for e in events] == [1, 2, 3, 4]
    assert events[3]["exit"]["message"] == "bad"
    again, blanks = await read(2, None)
    assert [e["seq"] for e in again] == [3, 4]
    assert blanks > 2


async def test_streams_end_with_the_agent(client: Make) -> None:
    it, http = await client("")
    async with asyncio.timeout(20), http.get("/v1/events") as response:
        it.supervisor.warn("the last word")
        await it.supervisor.stop(0)
        lines = [json.loads(line) async for line in response.content if line != b"\n"]
    assert [line["message"] for line in lines] == ["the last word"]


async def test_a_view_that_is_known_is_not_listed_again(client: Make, make_view: Make) -> None:
    it, http = await client("ready wait")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is WorkerPhase.READY)
    view = make_view(4)
    told = await state(await http.put("/v1/view?view=4", data=view.to_json()))
    assert (told.view, told.known_view, told.newest_view) == (None, 4, 4)
    for known in ("", "?view=3", "?view=5"):
        whole = await state(await http.get(f"/v1/state{known}"))
        assert (whole.view, whole.known_view, whole.newest_view) == (view, 0, 4), "who knows another is told"
    assert (await state(await http.post("/v1/drain?view=4"))).view is None
    await refused(await http.get("/v1/state?view=x"), 400, "view=x is not the number of a view")


async def test_metrics(client: Make, make_view: Make) -> None:
    it, http = await client("ready view commit:3 wait")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is WorkerPhase.READY)
    it.supervisor.put_view(make_view(4))
    await it.until(lambda s: s.worker.progress and s.worker.progress.step == 3)
    text = await (await http.get("/metrics")).text()
    place = 'pod="job-r0-1",rank="0",replica="0",stage="0"'
    assert f"lmj_step{{{place}}} 3.0" in text
    assert f"lmj_view{{{place}}} 4.0" in text
    assert f'lmj_worker_phase{{phase="Running",{place}}} 1.0' in text
    assert f"lmj_rank_compute_seconds{{{place}}} 0.25" in text
    assert f"lmj_rank_waiting_seconds{{{place}}} 0.5" in text
    assert "# HELP lmj_worker_incarnation" in text


async def test_workers_of_another_cut_are_to_follow_each_worker_of_the_pod(client: Make) -> None:
    it, http = await client("ready recut recut exit:1")
    recut = Recut(cut=Cut(stages=2), followers=[Member(rank=1, pod="job-r1-2", incarnation=1, address="a:1")])
    body = RecutRequest(recut=recut).to_json()
    assert (await state(await http.put("/v1/recut", data=body))).recut == recut
    assert (await state(await http.put("/v1/recut", data=body))).recut == recut
    wrong = {"recut": {"cut": {"stages": 0}, "followers": []}}
    await refused(await http.put("/v1/recut", json=wrong), 400, "not a RecutRequest: recut.cut.stages")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is WorkerPhase.READY)
    assert (await state(await http.put("/v1/recut", json={"recut": None}))).recut is None
    ended = (await it.until(lambda s: s.worker.exit)).worker.exit
    assert ended.stderr == ["followed by ['job-r1-2']", "followed by nobody"]


def test_metrics_of_a_rank_say_its_stage_and_its_replica() -> None:
    state = AgentState(pod="job-r5-1", rank=5, started=1.0)
    text = render(state, Topology(2, 2), 0, None).decode()
    assert 'lmj_view{pod="job-r5-1",rank="5",replica="2",stage="1"} 0.0' in text, "the job may have fewer replicas by now"
