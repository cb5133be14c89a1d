"""The stream of an agent's events, against a server that says what a test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from lmj_operator.backend.event_stream import StreamError, lines

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SECONDS = 10.0


class Server:
    """Answers each connection with the parts of ``answer``, one after the other, and ends it."""

    def __init__(self) -> None:
        self.answer: list[bytes] = []
        self.stays = False
        self.cuts = False
        self.asked = b""
        self.address = ""
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked = await reader.readuntil(b"\r\n\r\n")
        for part in self.answer:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.001)
        if self.stays:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            self.left.set()
        if self.cuts:
            writer.transport.abort()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield made
    listening.close()


async def read(server: Server, opened: Callable[[], None] = lambda: None, quiet: float = SECONDS) -> list[bytes]:
    return [
        line async for line in lines(server.address, "/v1/events?after=3", {"Authorization": "Bearer t"}, opened, SECONDS, quiet)
    ]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_lines_come_whole_however_the_network_cuts_them(server: Server, size: int) -> None:
    pieces = [b'{"a":1', b'}\n{"b', b'":2}\n\n', b"\n", b""]
    whole = CHUNKED + b"".join(b"%x;x=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    server.answer = [whole[at : at + size] for at in range(0, len(whole), size)]
    opened: list[bool] = []
    assert await read(server, lambda: opened.append(True)) == [b'{"a":1}', b'{"b":2}']
    assert opened == [True]
    assert server.asked.startswith(b"GET /v1/events?after=3 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer t\r\n" in server.asked


async def test_an_answer_without_chunks_lasts_until_its_end(server: Server) -> None:
    server.answer = [HEAD + b"\r\none\n", b"\ntwo\nhalf"]
    assert await read(server) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([b"HTTP/1.1 401 Unauthorized\r\n\r\n"], "HTTP 401"),
        ([b"SSH-2.0\r\n\r\n"], "not an answer of HTTP/1"),
        ([CHUNKED + b"zz\r\n"], "invalid literal"),
        ([CHUNKED + b"fffffff\r\n"], "a chunk of 268435455 bytes"),
        ([CHUNKED + b"5\r\nab"], "ended by the other side"),
        ([HEAD], "ended by the other side"),
    ],
)
async def test_what_is_no_stream_of_events_is_an_error(server: Server, answer: list[bytes], why: str) -> None:
    server.answer = answer
    with pytest.raises(StreamError, match=why):
        await read(server)


async def test_a_connection_that_breaks_is_an_error(server: Server) -> None:
    server.answer, server.cuts = [CHUNKED + b"3\r\nab\n\r\n"], True
    with pytest.raises(StreamError):
        await read(server)


async def test_a_silent_stream_is_not_believed_for_long(server: Server) -> None:
    server.answer, server.stays = [CHUNKED], True
    with pytest.raises(StreamError, match=r"nothing came for 0\.1 s"):
        await read(server, quiet=0.1)


async def test_nobody_there_is_an_error(server: Server) -> None:
    server.address = "127.0.0.1:1"
    with pytest.raises(StreamError):
        await read(server)


async def test_a_reader_that_leaves_ends_the_connection(server: Server) -> None:
    server.answer, server.stays = [CHUNKED + b"3\r\nab\n\r\n"], True
    reading = asyncio.create_task(read(server))
    async with asyncio.timeout(SECONDS):
        while not server.asked:  # noqa: ASYNC110 - who asks tells nobody
            await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await server.left.wait()
