"""A machine is told from its processes: it takes connections for those that are stopped."""

import asyncio
import contextlib
import errno
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from signing import KEY, POD

from lmj_api.protocol import AgentState
from lmj_operator.backend import reach
from lmj_operator.backend.agent_client import AgentClient, AgentError, MachineError
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.reach import is_there

pytestmark = pytest.mark.integration

DEADLINE = 10.0


@pytest.fixture
def stopped() -> Iterator[socket.socket]:
    """A process that listens and does nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """An address where no connection is answered any more, as without power: the kernel drops what comes when the queue is full."""
    if sys.platform != "linux":
        pytest.skip("others than Linux refuse what they have no room for")
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(made.getsockname())
        yield made


def address(listening: socket.socket) -> str:
    return "{}:{}".format(*listening.getsockname())


async def test_a_machine_is_there_when_the_process_is_stopped(stopped: socket.socket) -> None:
    assert await is_there(address(stopped), DEADLINE)


async def test_a_machine_is_there_when_nobody_listens(stopped: socket.socket) -> None:
    stopped.close()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        where = address(gone)
    assert await is_there(where, DEADLINE)


async def test_a_machine_that_answers_nothing_is_not_there(silent: socket.socket) -> None:
    assert not await is_there(address(silent), 0.25)


async def test_a_first_packet_that_was_lost_is_not_waited_for(silent: socket.socket) -> None:
    asyncio.get_running_loop().call_later(0.05, lambda: silent.accept()[0].close())
    assert await is_there(address(silent), 0.8)  # Linux repeats the packet after 1 s


async def test_one_who_looks_too_late_sees_what_the_kernel_knows(stopped: socket.socket) -> None:
    looking = asyncio.create_task(is_there(address(stopped), 0.05))
    asyncio.get_running_loop().call_soon(lambda: time.sleep(0.2))
    assert await looking


async def test_nothing_is_said_of_another_machine_by_one_that_has_no_socket_left(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_address: str) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(reach, "_connecting", none_left)
    assert await is_there(address(silent), 0.05)


@pytest.mark.parametrize("code", [errno.EADDRNOTAVAIL, errno.EPERM, errno.EAGAIN, errno.ENOBUFS, errno.ENETUNREACH])
async def test_a_connection_that_this_machine_cannot_begin_says_nothing_of_the_other(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: code)
    assert await is_there(address(silent), 0.05)


@pytest.mark.parametrize("code", [0, errno.EHOSTUNREACH])
async def test_a_machine_that_the_network_does_not_find_is_not_there(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: code)
    assert not await is_there(address(silent), 0.05)


class Slow:
    """An agent that answers after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):  # else it was asked whether it is there, and no more
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(self.seconds)
            text = AgentState(pod="p", rank=0, started=1.0).to_json()
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        writer.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


async def test_a_slow_agent_gets_its_time(session: aiohttp.ClientSession) -> None:
    server = await asyncio.start_server(Slow(0.5).serve, "127.0.0.1", 0)
    async with server:
        assert (await AgentClient(session, address(server.sockets[0]), Caller(KEY, "job", POD)).state()).pod == "p"


async def test_a_stopped_agent_is_not_a_machine_without_power(session: aiohttp.ClientSession, stopped: socket.socket) -> None:
    with pytest.raises(AgentError) as told:
        await AgentClient(session, address(stopped), Caller(KEY, "job", POD)).state()
    assert not isinstance(told.value, MachineError)


async def test_a_machine_without_power_is_told_at_once_to_who_would_wait_for_long(
    session: aiohttp.ClientSession, silent: socket.socket
) -> None:
    begin = time.monotonic()
    with pytest.raises(MachineError, match=r"POST http://127.0.0.1:[0-9]+/v1/drain: its machine takes no connection"):
        await AgentClient(session, address(silent), Caller(KEY, "job", POD)).drain()
    assert time.monotonic() - begin < 4  # a slow agent gets 5 s
