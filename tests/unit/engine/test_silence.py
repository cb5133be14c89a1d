"""What ends a link for its peer's silence, and what does not. That a machine without power does is the transport's contract."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lmj_trainer.transport.flow import Flow
from lmj_trainer.transport.silence import SilenceWatch

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="the watch is Linux's"),
]

SECONDS = 0.4
DEADLINE = 10.0
USER_TIMEOUT = 18


@pytest.fixture
def link() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection; the second is a peer that does nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mine = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    with mine, theirs:
        mine.setblocking(False)
        yield mine, theirs


@contextlib.contextmanager
def watched(is_link: Callable[[str, str], bool]) -> Iterator[None]:
    watch = SilenceWatch(SECONDS, lambda: None, is_link)
    try:
        yield
    finally:
        watch.close()


class Closing:
    """Heartbeats whose watch is closed while it waits."""

    files: frozenset[int] = frozenset()
    watch: SilenceWatch | None = None

    def __init__(self) -> None:
        self.closed = threading.Event()

    def wait(self, _seconds: float) -> None:
        while self.watch is None:
            time.sleep(0.01)
        self.watch.close()

    def close(self) -> None:
        self.closed.set()


def test_a_watch_that_is_closed_while_it_waits_beats_no_more() -> None:
    """The links are being dropped then: each would be taken for a lost peer."""
    heartbeats, beats = Closing(), list[int]()
    heartbeats.watch = SilenceWatch(SECONDS, lambda: beats.append(1), lambda _local, _remote: False, heartbeats)
    assert heartbeats.closed.wait(DEADLINE)
    assert beats == []


def timeout_of(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, USER_TIMEOUT)


def becomes(connection: socket.socket, milliseconds: int) -> bool:
    deadline = time.monotonic() + DEADLINE
    while timeout_of(connection) != milliseconds and time.monotonic() < deadline:
        time.sleep(0.01)
    return timeout_of(connection) == milliseconds


def fill(connection: socket.socket) -> None:
    """Send until the other end has room for no more."""
    deadline = time.monotonic() + DEADLINE
    while not Flow.of(connection).stuck and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            connection.send(b"x" * 65536)
    assert Flow.of(connection).stuck


def keep_sending(connection: socket.socket, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            connection.send(b"x")
        time.sleep(0.01)


def test_a_peer_that_does_not_read_is_not_silent(link) -> None:
    """Its kernel acknowledges; the time-out alone would end the connection all the same, as below."""
    mine, theirs = link
    with watched(lambda _local, _remote: True):
        assert becomes(mine, 200)
        fill(mine)
        assert becomes(mine, 0)
        keep_sending(mine, 4 * SECONDS)
        theirs.setblocking(False)
        deadline = time.monotonic() + DEADLINE
        while timeout_of(mine) != 200 and time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                theirs.recv(1 << 20)
        assert timeout_of(mine) == 200  # it reads again, and is watched again


def test_the_time_out_alone_ends_a_connection_whose_peer_does_not_read(link) -> None:
    """Of the kernel: should that change, there is nothing to work around any more."""
    mine, _ = link
    mine.setsockopt(socket.IPPROTO_TCP, USER_TIMEOUT, 200)
    fill(mine)
    with pytest.raises(TimeoutError):
        keep_sending(mine, DEADLINE)


def test_connections_of_others_keep_their_own_deadlines(link) -> None:
    mine, theirs = link
    names = ["{}:{}".format(*end.getsockname()) for end in (mine, theirs)]
    asked = []

    def is_link(local: str, remote: str) -> bool:
        asked.append((local, remote))
        return (local, remote) == (names[0], names[1])

    with watched(is_link):
        assert becomes(mine, 200)
        assert (names[1], names[0]) in asked
        assert timeout_of(theirs) == 0


def test_a_connection_that_is_being_made_has_time_for_a_packet_that_is_lost() -> None:
    """It is repeated after a second."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            last = stack.enter_context(socket.socket())
            last.setblocking(False)
            last.connect_ex(full.getsockname())
        with watched(lambda _local, _remote: True):
            assert becomes(last, 1000)
            assert Flow.of(last).connecting
            for _ in range(2):
                full.accept()[0].close()
            assert becomes(last, 200)
