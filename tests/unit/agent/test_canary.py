"""The canary of an agent: everybody who reaches it gets its line, and nobody can hold anything of it."""

import asyncio
import errno
import os
import socket
import time
from collections.abc import AsyncIterator

import pytest

from lmj_api.canary import LINE, VARIABLE
from lmj_trainer.agent import canary as module
from lmj_trainer.agent.canary import AT_ONCE, Canary, open_canary

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"
SECONDS = 10.0


@pytest.fixture
async def canary() -> AsyncIterator[Canary]:
    made = Canary(HOST, 0)
    yield made
    made.close()


async def told(port: int) -> bytes:
    """All that is said to one who connects, until it is hung up."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            return await reader.read()
        finally:
            writer.close()


async def test_who_connects_gets_a_line_and_no_more(canary: Canary) -> None:
    assert [await told(canary.port) for _ in range(3)] == [LINE] * 3


async def test_connections_that_are_left_open_hold_nothing(canary: Canary) -> None:
    begin = len(os.listdir("/dev/fd"))
    held = [socket.create_connection((HOST, canary.port), SECONDS) for _ in range(3 * AT_ONCE)]
    try:
        assert await told(canary.port) == LINE, "those before it are answered first"
        assert len(os.listdir("/dev/fd")) - begin <= len(held) + 1, "one file of each is that of who holds it"
        assert all(one.recv(100) == LINE for one in held)
    finally:
        for one in held:
            one.close()


async def test_one_that_comes_and_goes_at_once_is_no_trouble(canary: Canary) -> None:
    for _ in range(AT_ONCE):
        socket.create_connection((HOST, canary.port), SECONDS).close()
    assert await told(canary.port) == LINE


async def test_the_loop_goes_on_while_no_connection_can_be_taken(canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    accept, tries = socket.socket.accept, list[float]()

    def none_left(one: socket.socket) -> tuple[socket.socket, object]:
        tries.append(time.monotonic())
        if len(tries) <= 2:
            raise OSError(errno.EMFILE, "too many open files")
        return accept(one)

    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(socket.socket, "accept", none_left)
    assert await told(canary.port) == LINE
    assert tries[1] - tries[0] >= 0.09
    assert tries[2] - tries[1] >= 0.09


async def test_one_that_is_closed_listens_no_more() -> None:
    made = Canary(HOST, 0)
    port = made.port
    made.close()
    made.close()
    with pytest.raises(ConnectionRefusedError):
        await told(port)


async def test_a_pod_has_one_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.delenv(VARIABLE, raising=False)
    assert open_canary(HOST, said.append) is None
    monkeypatch.setenv(VARIABLE, "")
    assert open_canary(HOST, said.append) is None
    monkeypatch.setenv(VARIABLE, "0")
    made = open_canary(HOST, said.append)
    assert made is not None
    assert await told(made.port) == LINE
    assert said == []
    made.close()


@pytest.mark.parametrize(
    ("wanted", "why"), [(None, "Address already in use"), ("port", "invalid literal"), ("70000", "70000 is no port")]
)
async def test_one_that_cannot_listen_is_told_and_ends_nothing(
    canary: Canary, monkeypatch: pytest.MonkeyPatch, wanted: str | None, why: str
) -> None:
    """``wanted`` None: where another listens."""
    port = str(canary.port) if wanted is None else wanted
    monkeypatch.setenv(VARIABLE, port)
    said: list[str] = []
    assert open_canary(HOST, said.append) is None
    (line,) = said
    assert line.startswith(f"{VARIABLE}: cannot listen on {HOST}:{port}, so nobody finds out")
    assert why in line
