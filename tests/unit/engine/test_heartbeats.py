"""Heartbeats over connections of this machine. That a machine without power is noticed by them is the transport's contract."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lmj_trainer.transport import heartbeats
from lmj_trainer.transport.flow import Flow
from lmj_trainer.transport.heartbeats import Heartbeats, Pulse, host_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="heartbeats are for Linux"),
]

HOST, PEER = "127.0.0.1", "uv://127.0.0.1:1"
MILLISECONDS = 100
DEADLINE = 10.0


@pytest.fixture
def made() -> Iterator[Callable[[], Heartbeats]]:
    with contextlib.ExitStack() as stack:

        def make() -> Heartbeats:
            it = Heartbeats(HOST, MILLISECONDS)
            stack.callback(it.close)
            return it

        yield make


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def joined(a: Heartbeats, port: int) -> None:
    a.meet(PEER, port)
    until(lambda: a.beat(PEER) is Pulse.BEATS)


def test_a_peer_that_is_there_acknowledges(made) -> None:
    a, b = made(), made()
    assert a.beat(PEER) is Pulse.UNKNOWN  # nobody has said where it listens
    joined(a, b.port)
    until(lambda: (a.beat(PEER), a.acknowledged)[1] == {PEER})
    b.hear()
    (theirs,) = b._in
    for _ in range(10):
        assert a.beat(PEER) is Pulse.BEATS
        until(lambda: theirs.recv(64, socket.MSG_PEEK))
        b.hear()
        with pytest.raises(BlockingIOError):
            theirs.recv(1)  # all of it was taken


def test_a_peer_that_is_gone_is_not_silent(made) -> None:
    """Whoever waits is woken; what has become of the peer is for a call to say."""
    a, b = made(), made()
    joined(a, b.port)
    b.hear()
    b.close()
    begin = time.monotonic()
    a.wait(DEADLINE)
    assert time.monotonic() - begin < DEADLINE / 2
    until(lambda: a.beat(PEER) is Pulse.UNKNOWN)
    assert a.files == set() == a.acknowledged


def test_who_takes_no_connection_is_not_silent(made) -> None:
    a = made()
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
    a.meet(PEER, port)
    for _ in range(5):
        assert a.beat(PEER) is Pulse.UNKNOWN


@dataclass
class Unanswered:
    """A connection that the kernel ends because nothing is acknowledged."""

    real: socket.socket

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def send(self, _data: bytes) -> int:
        raise OSError(errno.ETIMEDOUT, "timed out")


@pytest.mark.parametrize(("acknowledged", "pulse"), [(True, Pulse.SILENT), (False, Pulse.UNKNOWN)])
def test_a_machine_is_silent_when_it_answered_before(
    made, acknowledged: bool, pulse: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else something on the way, which lets a connection be made and nothing through, would end a view again and again."""
    a, b = made(), made()
    if not acknowledged:
        monkeypatch.setattr(Flow, "of", lambda _connection: Flow(False, 1, 0, 1))
    joined(a, b.port)
    if acknowledged:
        until(lambda: (a.beat(PEER), a.acknowledged)[1])
    a._out[PEER] = Unanswered(a._out[PEER])
    assert a.beat(PEER) is pulse
    assert a.files == set()


def test_of_many_that_come_at_once_some_wait(made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the peers would have no beat while others come and go."""
    b = made()
    monkeypatch.setattr(heartbeats, "_AT_ONCE", 2)
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection((HOST, b.port)))
        counts = []
        until(lambda: (b.hear(), counts.append(len(b._in)), counts[-1] == 5)[2])
        assert counts[:3] == [2, 4, 5]


def test_a_process_without_a_file_left_has_no_heartbeats(made) -> None:
    """Its peers are called over their links."""
    a, b = made(), made()
    a.meet(PEER, b.port)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert a.beat(PEER) is Pulse.UNKNOWN
        b.hear()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    joined(a, b.port)  # it has said again where it listens


def test_a_peer_that_does_not_take_them_is_not_silent(made) -> None:
    """It is stopped, and its kernel acknowledges, until there is no room: the kernel's time-out would count that."""
    a = made()
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        listening.bind((HOST, 0))
        listening.listen()
        joined(a, listening.getsockname()[1])
        (mine,) = a._out.values()

        def full() -> bool:
            with contextlib.suppress(BlockingIOError):
                mine.send(b"x" * 65536)
            return Flow.of(mine).stuck

        until(full)
        end = time.monotonic() + 10 * MILLISECONDS / 1000
        while time.monotonic() < end:
            assert a.beat(PEER) is Pulse.BEATS
            time.sleep(0.01)


def test_others_are_let_go(made) -> None:
    a, b = made(), made()
    joined(a, b.port)
    a.keep([])
    assert a.files == set()
    b.hear()
    until(lambda: (b.hear(), b._in)[1] == {})


def test_who_is_quiet_for_long_is_closed(made, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = made(), made()
    joined(a, b.port)
    b.hear()
    assert len(b._in) == 1
    monkeypatch.setattr(heartbeats, "QUIET_SECONDS", 0.05)
    until(lambda: (b.hear(), b._in)[1] == {})
    until(lambda: a.beat(PEER) is Pulse.UNKNOWN)
    joined(a, b.port)  # and may come again


def test_no_more_than_so_many_are_taken(made, monkeypatch: pytest.MonkeyPatch) -> None:
    b = made()
    monkeypatch.setattr(heartbeats, "MOST", 2)
    with contextlib.ExitStack() as stack:
        all_ = [stack.enter_context(socket.create_connection((HOST, b.port))) for _ in range(5)]
        until(lambda: (b.hear(), len(b._in))[1] == 2)
        for refused in all_[2:]:
            refused.settimeout(DEADLINE)
            with contextlib.suppress(ConnectionResetError):
                assert refused.recv(1) == b""


@pytest.mark.parametrize(("address", "host"), [("uv://10.0.0.3:4500", "10.0.0.3"), ("uv://[fd00::3]:4500", "fd00::3")])
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host
