"""The stream of an agent's events, against a server that says what a test wants."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable

import pytest

from lmj_operator.backend import event_stream as module
from lmj_operator.backend.event_stream import LONGEST, MOST_UNREAD, TURNS, StreamError, lines

pytestmark = pytest.mark.integration

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
        ([CHUNKED + b"-5\r\n"], "a chunk of -5 bytes"),
        ([CHUNKED + b"1\r\naXX1\r\n"], "does not end where it should"),
        ([CHUNKED + b"0" * 100], "no size of a chunk in 64 bytes"),
        ([CHUNKED + b"2\r\na\n\r\n" + b"5;" + b"x" * 100], "no size of a chunk in 64 bytes"),
        ([b"HTTP/1.1 200 OK\r\n" + b"x" * (1 << 15)], "not an answer of HTTP/1"),
        ([HEAD + b"\r\n" + b"x" * (LONGEST + 1)], "a line of more than 131072 bytes"),
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


async def test_empty_lines_keep_a_stream_and_wake_nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    woken = 0
    part = module._Bytes.part

    def counted(self: module._Bytes) -> bytes | None:
        nonlocal woken
        woken += 1
        return part(self)

    monkeypatch.setattr(module._Bytes, "part", counted)
    empty = module.EMPTY_LINE

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in (CHUNKED, b"4\r\none\n\r\n", *[empty] * 20, b"5\r\nhalf \r\n", empty, b"4\r\ntwo\n\r\n0\r\n\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.03)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    # Twenty of them take longer than silence may; one that ends a line is no empty one.
    assert await read(server, quiet=0.3) == [b"one", b"half", b"two"]
    assert woken < 15
    listening.close()


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


async def test_what_comes_faster_than_it_is_read_waits_on_the_other_side(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    receive = module._Bytes.buffer_updated

    def buffer_updated(self: module._Bytes, nbytes: int) -> None:
        receive(self, nbytes)
        held.append(len(self._bytes))

    monkeypatch.setattr(module._Bytes, "buffer_updated", buffer_updated)
    monkeypatch.setattr(module, "MANY_TURNS", 1 << 30)
    block = b"x" * 1023 + b"\n"
    server.answer = [CHUNKED, *[b"%x\r\n%b\r\n" % (len(block) * 512, block * 512)] * 16, b"0\r\n\r\n"]
    count = 0
    async for _ in lines(server.address, "/v1/events?after=0", {}, lambda: None, SECONDS, SECONDS):
        count += 1
        if count % 512 == 0:
            await asyncio.sleep(0.01)  # what came meanwhile is more than is kept
    assert count == 16 * 512
    assert MOST_UNREAD < max(held) <= 2 * MOST_UNREAD  # one more read of the loop's


@pytest.mark.parametrize("body", [b"1\r\nx\r\n" * 8192, b"2\r\nx\n\r\n" * 8192, b"2000\r\n" + b"\n" * 8192 + b"\r\n"])
async def test_one_who_always_has_more_to_read_lets_others_have_their_turn(server: Server, body: bytes) -> None:
    server.answer = [CHUNKED + body, b"0\r\n\r\n"]
    reading = asyncio.create_task(read(server))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(await reading) in (0, 8192)
    assert turns > 8192 / TURNS


async def test_who_tells_more_than_any_agent_waits_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MANY_TURNS", 100)
    given, waited = 0, list[int]()

    async def turn() -> None:
        nonlocal given
        given += 1

    async def excess(turns: int) -> None:
        waited.append(turns)

    clock = [1000.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
    pace = module.Pace(turn, excess)
    for _ in range(100):
        await pace.taken(1)
    assert (given, waited) == (6, [])
    for _ in range(28):
        await pace.taken(1)
    await pace.taken(256)  # a part of a long line
    assert (given, waited) == (9, [TURNS, TURNS, 256])
    clock[0] += 2 * TURNS * module.EARNED_SECONDS
    for _ in range(4 * TURNS):
        await pace.taken(1)
    assert waited == [TURNS, TURNS, 256, TURNS, TURNS]
    clock[0] += 1e6
    for _ in range(100 + TURNS):
        await pace.taken(1)
    assert waited == [TURNS, TURNS, 256, TURNS, TURNS, TURNS], "no more than at first"


async def test_more_than_any_agent_tells_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await module.slowly(TURNS)
    assert slept == [TURNS * module.SLOW_SECONDS]


async def test_a_turn_is_waited_for_before_more_of_many_lines_are_taken(server: Server) -> None:
    server.answer = [CHUNKED + b"%x\r\n%b\r\n" % (10 * TURNS * 2, b"x\n" * 10 * TURNS), b"0\r\n\r\n"]
    turn, taken = asyncio.Event(), list[bytes]()

    async def take() -> None:
        async for line in lines(server.address, "/v1/events?after=0", {}, lambda: None, SECONDS, SECONDS, module.Pace(turn.wait)):
            taken.append(line)

    taking = asyncio.create_task(take())
    while not taken:  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert len(taken) <= TURNS
    turn.set()
    await taking
    assert len(taken) == 10 * TURNS


@pytest.mark.parametrize("cuts", [False, True])
async def test_a_stream_that_ended_leaves_nothing_for_the_garbage_collector(server: Server, cuts: bool) -> None:
    server.answer, server.cuts = [CHUNKED + b"3\r\nab\n\r\n"], cuts
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(StreamError):
            await read(server)
        await asyncio.sleep(0)
        assert not [kept for kept in gc.get_objects() if type(kept) is module._Bytes]
    finally:
        gc.enable()
