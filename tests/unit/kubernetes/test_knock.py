"""A knock at a canary tells the canary from a network that keeps out, and both from all that says nothing of it."""

import asyncio
import contextlib
import errno
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from lmj_api.canary import LINE
from lmj_operator.backend.kubernetes import knock as module
from lmj_operator.backend.kubernetes.knock import TRIES, TRY_SECONDS, Answer, knock
from lmj_trainer.agent.canary import Canary

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"


@pytest.fixture
async def canary() -> AsyncIterator[Canary]:
    made = Canary(HOST, 0)
    yield made
    made.close()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port whose process takes no connection out of the kernel's hands."""
    monkeypatch.setattr(module, "LINE_SECONDS", 0.1)
    with socket.create_server((HOST, 0)) as made:
        yield made.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port at which nothing is answered, as where a policy drops what comes: the kernel does when the queue is full."""
    if sys.platform != "linux":
        pytest.skip("others than Linux refuse what they have no room for")
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        for _ in range(2):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(made.getsockname())
        yield made.getsockname()[1]


async def test_the_canary_is_known_by_its_line(canary: Canary) -> None:
    assert await knock(HOST, canary.port) is Answer.LINE


async def test_a_refused_connection_is_one_that_did_not_come_about() -> None:
    with socket.create_server((HOST, 0)) as gone:
        port = gone.getsockname()[1]
    assert await knock(HOST, port) is Answer.NOTHING


async def test_what_is_dropped_is_tried_again_and_then_known(silent: int) -> None:
    begin = time.monotonic()
    assert await knock(HOST, silent) is Answer.NOTHING
    assert TRIES * TRY_SECONDS <= time.monotonic() - begin < 10 * TRIES * TRY_SECONDS


async def test_a_first_packet_that_was_lost_is_no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    async def once_lost(host: str, port: int) -> Answer:
        tried.append(port)
        return Answer.NOTHING if len(tried) == 1 else Answer.LINE

    monkeypatch.setattr(module, "_knock_once", once_lost)
    assert await knock(HOST, 1) is Answer.LINE
    assert len(tried) == 2


async def test_a_proxy_that_takes_connections_for_others_is_no_canary(stopped: int) -> None:
    assert await knock(HOST, stopped) is Answer.UNCLEAR


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 503 Service Unavailable\r\n\r\n", LINE[:-1], LINE[:-1] + b"!"])
async def test_who_says_something_else_is_no_canary(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_SECONDS", 0.5)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        assert await knock(HOST, server.sockets[0].getsockname()[1]) is Answer.UNCLEAR


async def test_a_loop_that_looks_too_late_takes_no_open_port_for_a_closed_one(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "TRIES", 1)
    knocking = asyncio.create_task(knock(HOST, canary.port))
    asyncio.get_running_loop().call_soon(lambda: time.sleep(0.1))
    assert await knocking is Answer.LINE


@pytest.mark.parametrize("code", [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EACCES])
async def test_a_network_may_refuse_in_words(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    await _failing(monkeypatch, code)
    assert await knock(HOST, 1) is Answer.NOTHING


@pytest.mark.parametrize("code", [errno.EADDRNOTAVAIL, errno.EPERM, errno.ENETUNREACH, errno.ENOBUFS])
async def test_what_this_machine_cannot_try_says_nothing(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    await _failing(monkeypatch, code)
    assert await knock(HOST, 1) is Answer.UNCLEAR


async def _failing(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    async def fails(*_: object) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", fails)


async def test_a_machine_without_a_file_left_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("socket.socket", none_left)
    assert await knock(HOST, 1) is Answer.UNCLEAR
