"""The real ``agent`` command, in processes of its own, with the real worker command."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jobs import job_document, write_data
from signing import KEY, POD, ask

from lmj_api.canary import LINE, VARIABLE
from lmj_api.protocol import AgentState
from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.agent_client import AgentClient
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.channel import Channel
from lmj_trainer.__main__ import main

Start = Callable[..., "Running"]
pytestmark = pytest.mark.e2e


class Running:
    """A running agent."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        rank = [] if "--standby" in options else ["--rank", "0"]
        command = [sys.executable, "-m", "lmj_trainer", "agent", *rank, "--pod", "job-r0-1", "--dir", str(folder / "pod")]
        command += ["--job", str(folder / "job.json"), "--uid", POD, f"--trust={KEY.public}", *options]
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self.log)
        announced = folder / "pod" / "agent.json"
        until(announced.exists)
        self.place: dict[str, Any] = json.loads(announced.read_text())
        self.caller = Caller(KEY, "", POD)

    def ask(self, method: str, path: str, body: bytes | None = None) -> HTTPResponse:
        return ask(f"{self.place['host']}:{self.place['port']}", self.caller, method, path, body)

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        with self.ask(method, path, data) as response:
            value: dict[str, Any] = json.load(response)
            return value

    def ready(self, incarnation: int, **more: int) -> int:
        """Process id of worker ``incarnation``, when it is ready."""
        self.call("PUT", "/v1/worker", {"incarnation": incarnation, **more})
        until(lambda: self.worker()["phase"] != "Starting", 120)
        worker = self.worker()
        assert (worker["phase"], worker["incarnation"]) == ("Ready", incarnation), worker["exit"]
        return int(worker["pid"])

    def start_worker(self) -> int:
        began = time.monotonic()
        assert self.call("PUT", "/v1/worker", {"incarnation": 1})["worker"]["phase"] == "Starting"
        assert time.monotonic() - began < 4, "the operator waits 5 seconds"
        until(lambda: self.worker()["pid"] is not None, 60)
        pid = int(self.worker()["pid"])
        assert os.getsid(pid) == pid
        assert b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == self.process.pid
        return pid

    def worker(self) -> dict[str, Any]:
        value: dict[str, Any] = self.call("GET", "/v1/state")["worker"]
        return value

    def fork_server(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(c) for c in children if b"fork-server" in Path(f"/proc/{c}/cmdline").read_bytes().split(b"\0"))

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.log.close()


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)


def dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def write_job(folder: Path, **training: object) -> None:
    document = job_document(folder / "out")
    document["spec"]["dataset"]["source"] = str(folder / "data.csv")
    document["spec"]["training"] |= training
    (folder / "job.json").write_text(LiveMigrationJob.model_validate(document).to_json())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    write_data(tmp_path / "data.csv")
    write_job(tmp_path)
    made: list[Running] = []

    def make(*options: str) -> Running:
        made.append(Running(tmp_path, *options))
        return made[-1]

    yield make
    for each in made:
        each.end()


def test_it_has_a_canary_where_its_pod_is_to_have_one(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv(VARIABLE, str(port))
    agent = start()
    with socket.create_connection(("127.0.0.1", port), 10) as one:
        assert one.makefile("rb").read() == LINE
    assert agent.call("GET", "/v1/state")["canary"] is True
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(30) == 0


def test_it_serves_inside_tls_where_its_pod_has_a_token(start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("the pod's")
    agent = start(f"--token={tmp_path / 'token'}")
    address = f"{agent.place['host']}:{agent.place['port']}"
    shown: list[str] = []

    async def prove(token: str) -> None:
        shown.append(token)

    async def probe_and_ask() -> AgentState:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"https://{address}/healthz", ssl=False) as answer:  # as a kubelet does
                assert (answer.status, await answer.text()) == (200, "ok\n")
            return await AgentClient(session, address, Caller(KEY, "", POD, Channel(prove))).state()

    assert asyncio.run(probe_and_ask()).pod == "job-r0-1"
    assert shown == ["the pod's"]
    with pytest.raises(OSError, match=r"reset|closed|refused|without"):
        agent.call("GET", "/v1/state")


def test_the_parents_death_leaves_no_process(start: Start) -> None:
    agent = start("--lifeline")
    worker, server = agent.start_worker(), agent.fork_server()
    assert agent.process.stdin is not None
    began = time.monotonic()
    agent.process.stdin.close()  # as the kernel does for a parent that was killed
    assert agent.process.wait(10) == 1
    until(lambda: dead(worker) and dead(server), 10)
    assert time.monotonic() - began < 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_the_agents_death_leaves_no_process(start: Start) -> None:
    agent = start()
    worker, server = agent.start_worker(), agent.fork_server()
    agent.process.kill()
    until(lambda: dead(worker) and dead(server), 10)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_the_agents_death_while_libraries_load(start: Start) -> None:
    agent = start()
    agent.call("PUT", "/v1/worker", {"incarnation": 1})
    server = agent.fork_server()
    assert agent.worker()["pid"] is None
    agent.process.kill()
    until(lambda: dead(server), 10)


def test_a_cold_agent_has_no_fork_server(start: Start) -> None:
    agent = start("--cold")
    worker = agent.start_worker()
    with pytest.raises(StopIteration):
        agent.fork_server()
    agent.process.kill()
    until(lambda: dead(worker), 10)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_killed_worker_is_ready_again_without_a_cold_start(start: Start, tmp_path: Path, threads: int) -> None:
    write_job(tmp_path, threads=threads)
    agent = start()
    worker, server = agent.ready(1), agent.fork_server()
    for incarnation in (2, 3):
        began = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        until(lambda: agent.worker()["exit"] is not None)
        worker = agent.ready(incarnation)
        print(f"{time.monotonic() - began:.2f} s from SIGKILL to Ready")
    assert agent.fork_server() == server
    with agent.ask("GET", "/v1/events") as stream:
        kinds = []
        while kinds.count("ready") < 3:
            kinds.append(json.loads(stream.readline())["kind"])
    assert "warning" not in kinds, "a start was a cold one"
    with agent.ask("GET", "/metrics") as response:
        assert "lmj_agent_fork_server_bytes{" in response.read().decode()


def test_sigterm_without_a_worker(start: Start) -> None:
    agent = start()
    assert agent.place["pid"] == agent.process.pid
    until(lambda: agent.call("GET", "/v1/state")["scanned"])
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(10) == 0


def test_sigterm_gives_the_worker_its_grace(start: Start) -> None:
    agent = start("--grace", "0.3")
    worker, server = agent.start_worker(), agent.fork_server()
    os.kill(server, signal.SIGTERM)  # it goes to the whole group when a pod is ended
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(15) == 0
    assert dead(worker)
    assert dead(server)


def test_half_written_checkpoints_are_told(start: Start, tmp_path: Path) -> None:
    (tmp_path / "out" / "checkpoints" / "step-000000005").mkdir(parents=True)
    agent = start()
    until(lambda: agent.call("GET", "/v1/state")["scanned"])
    found = agent.call("GET", "/v1/state")["checkpoints"]
    assert [(c["step"], c["problem"]) for c in found] == [(5, "half-written (no manifest)")]


def test_a_checkpoint_folder_that_cannot_be_read_is_not_an_empty_one(start: Start, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoints").write_text("a file")
    agent = start()
    with agent.ask("GET", "/v1/events") as stream:
        assert "cannot be looked through" in json.loads(stream.readline())["message"]
    assert agent.call("GET", "/v1/state")["scanned"] is False
    (tmp_path / "out" / "checkpoints").unlink()
    until(lambda: agent.call("GET", "/v1/state")["scanned"])


def test_it_needs_no_torch() -> None:
    code = "import sys, lmj_trainer.agent.main; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'datasets')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_mistakes_are_one_line(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = {
        "--job": str(tmp_path / "job.json"),
        "--rank": "0",
        "--pod": "p",
        "--dir": str(tmp_path),
        "--uid": POD,
        "--trust": KEY.public,
    }
    (tmp_path / "text").write_text("secret\n")
    for change, part in (
        ({"--job": "/absent.json"}, "/absent.json: the job cannot be read"),
        ({"--job": str(tmp_path / "text")}, "Invalid JSON"),
        ({"--rank": "2"}, "the job has ranks 0 to 1"),
        ({"--trust": "nonsense"}, "--trust 'nonsense': not a public key of Ed25519"),
        ({"--listen": "203.0.113.1:1"}, "cannot listen on 203.0.113.1:1"),
    ):
        assert main(["agent", *(f"{name}={value}" for name, value in {**base, **change}.items())]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert part in error
        assert error.count("\n") == 1
    with contextlib.suppress(SystemExit):
        main(["agent", *(f"{name}={value}" for name, value in {**base, "--listen": "nonsense"}.items())])
    assert "--listen" in capsys.readouterr().err


def test_a_standby_gets_warm_and_becomes_a_rank(start: Start, tmp_path: Path) -> None:
    agent = start("--standby")
    until(lambda: agent.call("GET", "/v1/state")["warm"], 120)
    state = agent.call("GET", "/v1/state")
    assert (state["rank"], state["worker"]["incarnation"], state["scanned"]) == (None, 0, False)
    assert list((tmp_path / "out" / "cache").iterdir()), "the dataset was not prepared"
    began = time.monotonic()
    pid = agent.ready(1, rank=1)
    print(f"from claim to Ready: {time.monotonic() - began:.2f} s")
    words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert words[words.index(b"--rank") + 1] == b"1"
    until(lambda: agent.call("GET", "/v1/state")["scanned"])
    assert agent.call("GET", "/v1/state")["rank"] == 1
    os.kill(pid, 9)
    until(lambda: agent.worker()["phase"] == "Exited")
    assert agent.ready(2) != pid


def test_a_standby_of_a_job_that_cannot_be(start: Start, tmp_path: Path) -> None:
    write_job(tmp_path, batchSize=4000)
    agent = start("--standby")
    assert agent.process.wait(120) == 2
    assert (tmp_path / "log").read_text().splitlines()[-1].startswith("error: 192 training rows are fewer than one global batch")
