"""What the benchmark of tenants makes of what it saw."""

import asyncio
import json
import os
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest

from lmj_api.protocol import AgentState, Event
from lmj_api.size import check_size

if sys.platform != "linux":
    pytest.skip("the benchmark reads /proc", allow_module_level=True)


@pytest.fixture
def tenants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import tenants

    return tenants


def test_pods_are_counted_for_each_rank_from_the_first_to_the_end(tenants: ModuleType) -> None:
    def made(at: float, name: str, code: int = 201, resource: str = "pods") -> Any:
        return tenants.Call(at, "create", resource, name, code)

    calls = [made(10 + n, f"storm-0001-r{n % 2}-{n}") for n in range(20)]
    calls += [made(10, "storm-0001-r0-21", 409), made(10, "liar-0001-s-1"), made(12, "size-0003-r0-1")]
    calls.append(made(5, "neighbour-00001-r0-1"))
    calls.append(made(10, "storm-0001.17", resource="events"))
    found = tenants.pods_a_second(calls, 30.0)
    assert found == {"storm-0001": 20 / 2 / 20, "liar-0001": 1 / 2 / 20, "size-0003": 1 / tenants.RANKS["size"] / 18}


def test_each_goal_is_missed_by_what_it_is_of(tenants: ModuleType) -> None:
    answer = tenants.Answer(0.0, 0.060, 0.030, 0.010, 0.0)
    good = tenants.Measured([1.0] * 200, [9.0], [1.5] * 200, [answer], [], {"storm-0001": 0.7}, 200.0)
    assert [each.met for each in tenants.goals(good)] == [True] * 6
    for worse in (
        {"resident": 256.0},
        {"answers": [answer, replace(answer, queued=0.005)]},
        {"unanswered": ["ConnectionResetError: "]},
        {"siege": [1.5] * 196 + [2.1] * 4},
        {"pods": {"storm-0001": 0.7, "storm-0002": 1.1}},
    ):
        assert [each.met for each in tenants.goals(replace(good, **worse))].count(False) == 1, worse
    late = [1.5] * 199 + [tenants.LONGEST]
    missed = [each.name for each in tenants.goals(replace(good, siege=late)) if not each.met]
    assert len(missed) == 1
    assert "did not start" in missed[0], "the slowest of two hundred is not the 99th percentile"


@pytest.mark.parametrize(
    ("queued", "ran", "stolen", "stop"),
    [
        (0.0, 0.02, 0.0, 0.10),
        (0.03, 0.02, 0.0, 0.07),
        (0.03, 0.02, 0.04, 0.03),
        (0.03, 0.05, 0.04, 0.05),
        (0.03, 0.08, 0.0, 0.07),
        (0.03, 0.0, 0.09, 0.0),
        (0.11, 0.02, 0.0, 0.0),
    ],
    ids=["it did something", "waited", "the host had others", "it ran all the same", "it ran on", "others alone", "counted late"],
)
def test_a_stop_is_what_was_no_wait_for_a_processor(
    tenants: ModuleType, queued: float, ran: float, stolen: float, stop: float
) -> None:
    assert tenants.Answer(0.0, 0.10, queued, ran, stolen).stop == pytest.approx(stop)


def test_half_of_the_large_jobs_are_as_large_as_a_job_may_be(tenants: ModuleType) -> None:
    jobs = [json.loads(text) for n in range(0, 8, 4) if b'{"a":{"a":{"a":' not in (text := tenants.hostile_jobs.document(n))]
    allowed = [job for job in jobs if len(json.dumps(job)) < 400_000]
    assert allowed
    for job in allowed:
        assert len(json.dumps(job["spec"])) > 180_000
        check_size(job)
    assert max(len(tenants.hostile_jobs.document(n)) for n in range(0, 80, 4)) > 1_200_000


@pytest.mark.parametrize("number", range(10))
def test_what_liars_send_is_what_an_operator_reads_at_first(tenants: ModuleType, number: int) -> None:
    from operator_load import hostile_agent

    agent = hostile_agent.agent_of("liar-0000-r0-1", ("tenant-a", f"liar-{number:04d}"), 0, "127.0.0.1", 5.0)
    noise = agent.noise(7.0)
    for line in (noise or b"").splitlines()[:3] if noise is not None and noise.endswith(b"\n") else ():
        Event.model_validate_json(line)
    if number in (4, 5, 6, 7, 8, 9):
        AgentState.model_validate_json(agent.said(7.0).body)
    assert (noise is not None) == (number in (4, 6, 7, 8, 9))


def test_workers_of_storms_die_as_soon_as_they_start(tenants: ModuleType) -> None:
    from operator_load import hostile_agent

    agent = hostile_agent.agent_of("storm-0000-r0-1", ("tenant-a", "storm-0000"), 0, "127.0.0.1", 5.0)
    assert agent.start(1, 6.0)
    agent.ready(7.0)
    state = AgentState.model_validate_json(agent.said(8.0).body)
    assert (state.worker.phase, state.worker.exit.code if state.worker.exit else None) == ("Exited", 1)


class Slow(BaseHTTPRequestHandler):
    """Answers, the third time only after it has slept."""

    asked = 0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        Slow.asked += 1
        if Slow.asked == 3:
            time.sleep(0.3)
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_: Any) -> None:
        pass


def test_the_probe_sees_for_how_long_nothing_is_answered(tenants: ModuleType, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with tenants.Probe(os.getpid(), server.server_address[1], tmp_path) as probe:
            deadline = time.monotonic() + 20
            while Slow.asked < 6 and time.monotonic() < deadline:
                time.sleep(0.01)
    finally:
        server.shutdown()
        server.server_close()
    assert not probe.failed
    assert len(probe.answers) >= 5
    assert 0.2 < probe.answers[2].stop <= probe.answers[2].seconds
    assert probe.answers[2].stop == max(answer.stop for answer in probe.answers)


def test_a_call_that_the_api_server_had_no_time_for_is_made_again(tenants: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from operator_load import load

    monkeypatch.setattr(load, "CALL_SECONDS", 0.2)
    asked: list[str] = []
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            asked.append(self.path)
            if len(asked) == 1:
                ended.wait(10)  # it answers nobody
                return
            self.send_response(504 if len(asked) == 2 else 200 if self.path == "/job" else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    async def delete(path: str) -> None:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.server_port}") as session:
            await load.insisted(session, "DELETE", path, None)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            asyncio.run(delete("/job"))
            assert asked == ["/job"] * 3
            with pytest.raises(RuntimeError, match="403"):
                asyncio.run(delete("/other"))
        finally:
            ended.set()
            server.shutdown()


def test_the_slowest_calls_under_siege_are_told(tenants: ModuleType, tmp_path: Path) -> None:
    def line(name: str, at: int, end: int) -> str:
        times = {"requestReceivedTimestamp": f"2026-01-01T00:00:{at:02}Z", "stageTimestamp": f"2026-01-01T00:00:{end:02}Z"}
        return json.dumps({"verb": "create", "objectRef": {"resource": "pods", "name": name}, **times}) + "\n"

    (tmp_path / "audit.log").write_text(line("early", 1, 30) + line("short", 12, 13) + line("long", 11, 15))
    found = list(sys.modules["operator_load.audit"].calls(tmp_path / "audit.log"))
    began = next(call.at for call in found if call.name == "early") + 9
    assert tenants._slowest(found, began) == [[1.0, 4.0, "create", "pods", "long"], [2.0, 1.0, "create", "pods", "short"]]
