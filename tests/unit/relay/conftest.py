"""Two relays on loopback, and a worker behind one of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from lmj_trainer.relay.address import Address
from lmj_trainer.relay.relay import Relay

DEADLINE = 10.0
LOOPBACK = "127.0.0.1"


class Worker:
    """A listener that does as TensorPipe's: it answers the first word with where it listens, and what comes then with the same."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self.ended = asyncio.Event()
        self.serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object] = self.echo

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        with contextlib.suppress(OSError):
            await self.serve(reader, writer)  # type: ignore[misc]
        self.ended.set()

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)
        writer.write(self.greeting)
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    @property
    def greeting(self) -> bytes:
        return b"\x20\0\0\0at " + f"{LOOPBACK}:{self.port}".encode() + b"."

    def close(self) -> None:
        self._server.close()
        for connection in self.connections:
            connection.transport.abort()


@dataclass
class Pair:
    """``here`` reaches the worker, which is behind ``there``."""

    here: Relay
    there: Relay
    worker: Worker
    address: Address
    """The worker's, as ``here`` is told it."""
    opened: list[asyncio.StreamWriter] = field(default_factory=list)

    async def way(self, address: Address | None = None) -> tuple[str, int]:
        """Where the worker is found here."""
        host, _, port = (await self.here.reach("worker", str(address or self.address))).partition(":")
        return host, int(port)

    async def connect(self, address: Address | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As TensorPipe begins a pipe."""
        reader, writer = await asyncio.open_connection(*await self.way(address))
        self.opened.append(writer)
        return reader, writer

    async def greeted(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        """The same, after the worker's first word, with the port that it named."""
        reader, writer = await self.connect()
        writer.write(b"hello")
        greeting = await within(reader.readexactly(len(self.worker.greeting)))
        assert greeting.startswith(b"\x20\0\0\0at 127.0.0.1:")
        assert greeting.endswith(b".")
        return reader, writer, int(greeting[:-1].rpartition(b":")[2])


async def within(awaitable, seconds: float = DEADLINE):
    """What it gives, in good time."""
    return await asyncio.wait_for(awaitable, seconds)


async def end_of(reader: asyncio.StreamReader, seconds: float = DEADLINE) -> bytes:
    """What still comes before the end; a reset is one."""
    data = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := await within(reader.read(1 << 16), seconds):
            data += part
    return bytes(data)


@pytest.fixture
def tools():
    """What tests use, too."""
    return type("Tools", (), {"within": staticmethod(within), "end_of": staticmethod(end_of), "LOOPBACK": LOOPBACK})


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    here, there, worker = Relay(0.5), Relay(0.5), Worker()
    await here.open(LOOPBACK)
    await there.open(LOOPBACK)
    await worker.open()
    address = Address.of(there.publish("worker", worker.port))
    there.admit("worker", [here.publish("worker", 1)])
    made = Pair(here, there, worker, address)
    yield made
    for writer in made.opened:
        writer.transport.abort()
    worker.close()
    await here.close()
    await there.close()
