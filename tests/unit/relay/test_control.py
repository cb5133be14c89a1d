"""The relay as a process, and the line over which a worker tells it what it wants."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lmj_trainer.relay.address import Address
from lmj_trainer.relay.line import RelayError, RelayLine

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="a relay runs in pods"),
]

DEADLINE = 30.0
LOOPBACK = "127.0.0.1"


@dataclass
class Process:
    popen: subprocess.Popen[bytes]
    path: Path
    address: str
    key: str


@contextlib.contextmanager
def running(path: Path) -> Iterator[Process]:
    command = [sys.executable, "-m", "lmj_trainer", "relay", "--host", LOOPBACK, "--socket", str(path)]
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert popen.stdout is not None
        said = json.loads(popen.stdout.readline())
        yield Process(popen, path, said["address"], said["key"])
    finally:
        popen.kill()
        popen.wait(DEADLINE)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Process]:
    with running(tmp_path / "r") as process:
        yield process


@pytest.fixture
def worker() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as listening:
        listening.settimeout(DEADLINE)
        yield listening


def place(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return host, int(port)


def test_two_workers_behind_two_relays_reach_each_other(relay, worker, tmp_path) -> None:
    with running(tmp_path / "s") as other:
        mine, theirs = RelayLine(other.path), RelayLine(relay.path)
        port = worker.getsockname()[1]
        address = theirs.publish(port)
        assert address == f"tls://{relay.address}/{port}#{relay.key}"
        theirs.admit([mine.publish(9)])
        with socket.create_connection(place(mine.reach(address)), DEADLINE) as near:
            far, _ = worker.accept()
            with far:
                far.settimeout(DEADLINE)
                near.sendall(b"word")
                assert far.recv(4) == b"word"
                # When a pod goes, all of it goes: here its relay alone does, and both ends are told.
                relay.popen.kill()
                assert far.recv(1) == b""
                assert near.recv(1) == b""


def test_what_was_wanted_goes_with_who_wanted_it(relay, worker) -> None:
    first = RelayLine(relay.path)
    own = first.publish(worker.getsockname()[1])
    first.admit([own])
    way = place(first.reach(own))
    socket.create_connection(way, DEADLINE).close()
    first.close()
    second = RelayLine(relay.path)
    way_of_second = place(second.reach(own))
    deadline = time.monotonic() + DEADLINE
    with contextlib.suppress(ConnectionRefusedError):
        while time.monotonic() < deadline:  # the relay hears of it in its own time
            socket.create_connection(way, DEADLINE).close()
    assert time.monotonic() < deadline
    with socket.create_connection(way_of_second, DEADLINE) as near:
        near.settimeout(DEADLINE)
        # It is not published any more, and nobody is let in.
        assert Address.of(own).key == relay.key
        second.admit([own])
        with contextlib.suppress(ConnectionResetError):
            assert near.recv(1) == b""


def test_a_wrong_order_is_told_and_the_line_goes_on(relay) -> None:
    line = RelayLine(relay.path)
    for wrong in ("uv://127.0.0.1:4", "tls://x", ""):
        with pytest.raises(RelayError, match="is not the address of a worker behind a relay"):
            line.reach(wrong)
        with pytest.raises(RelayError, match="is not the address of a worker behind a relay"):
            line.admit([wrong])
    with pytest.raises(RelayError, match="without what it is for"):
        line.publish(0)
    line.forget(f"tls://127.0.0.1:1/1#{'Q' * 43}")
    assert line.publish(41234).startswith("tls://127.0.0.1:")


@pytest.mark.parametrize("said", [b"\n", b"null\n", b'{"kind": "exec"}\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n"])
def test_what_is_no_order_is_answered_with_a_problem(relay, said) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(DEADLINE)
        raw.connect(str(relay.path))
        raw.sendall(said)
        answer: dict[str, Any] = json.loads(raw.makefile("rb").readline())
    assert answer["problem"].startswith("not an order: ")


def test_a_line_without_end_is_closed(relay) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(DEADLINE)
        raw.connect(str(relay.path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(64):
                raw.sendall(b"x" * (1 << 16))
            assert raw.recv(1) == b""
    assert RelayLine(relay.path).publish(41234)


def test_the_socket_is_the_owner_s_alone(relay) -> None:
    assert stat.S_IMODE(relay.path.stat().st_mode) == 0o600


def test_it_ends_when_its_parent_does(relay) -> None:
    assert relay.popen.stdin is not None
    relay.popen.stdin.close()
    assert relay.popen.wait(DEADLINE) == 0


def test_a_worker_is_told_of_the_relay_s_end(relay) -> None:
    line, told = RelayLine(relay.path), threading.Event()
    line.on_end(told.set)
    line.publish(41234)
    assert not told.wait(0.2)
    os.kill(relay.popen.pid, signal.SIGKILL)
    assert told.wait(DEADLINE)
    relay.popen.wait(DEADLINE)  # its files are closed one after the other
    with pytest.raises(RelayError):
        line.publish(41234)
    with pytest.raises(RelayError):
        line.publish(41234)
    with pytest.raises(RelayError, match="the pod's relay is not at"):
        RelayLine(relay.path)


def test_a_port_that_is_taken_is_a_mistake_with_a_line(relay, tmp_path) -> None:
    port = relay.address.rpartition(":")[2]
    command = [sys.executable, "-m", "lmj_trainer", "relay", "--host", LOOPBACK, "--port", port, "--socket", str(tmp_path / "t")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: the relay cannot listen at {LOOPBACK}:{port}")


def test_a_relay_starts_without_the_models_of_a_job() -> None:
    """They take longer to import than all else of it, in each pod that comes, beside those that train."""
    code = "import sys, lmj_trainer.__main__, lmj_trainer.relay.main; sys.exit('lmj_api.spec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
