"""An agent's stream of events: lines over HTTP, by hand.

A job has one open to each of its agents for its whole life: thousands, on which little comes. What a general HTTP client keeps for each
(buffers, parsers, headers) is more than all that is known of the agent.

What comes is written by whatever runs in the pod: whatever it is, it costs bounded memory, and others have their turn.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import cast

from aiohttp import Fingerprint

from lmj_api.signed import CHALLENGE
from lmj_operator.backend import rounds
from lmj_operator.backend.budget import Budget
from lmj_operator.backend.channel import CONTEXT, fingerprint
from lmj_operator.backend.lines import whole_lines
from lmj_operator.backend.reach import place

LONGEST = 1 << 17
"""Bytes of a line. Those of stderr, of an agent whose worker has ended, may be 100 KB."""
MOST_UNREAD = 1 << 12
"""Bytes that came and were not taken yet, after which the other side waits. Hundreds of agents may always have more to tell, and wait for their
turns: of each there is as much again, which is being taken."""
LONGEST_HEAD = 1 << 14
"""Bytes of an answer before its body."""
LONGEST_SIZE = 64
"""Bytes of the line before a chunk."""
EMPTY_LINE, BETWEEN = b"1\r\n\n\r\n", b"\r\n"
"""An empty line as a chunk of its own, and what is left when all chunks before it were taken: nobody has to be woken for it."""
_CHALLENGE = CHALLENGE.lower().encode()
_read = memoryview(bytearray(MOST_UNREAD))
"""What the loop reads at once, of any stream: it is copied before the next is read. A loop's own buffer is 64 times as large."""

TURNS = 16
"""Lines, or KiB of them, after which others have their turn."""
MANY_TURNS = 2_000
"""So many as fast as they come: more than an agent tells of all its life, whose commits are thinned out."""
EARNED_SECONDS = 0.2
"""In which each becomes one of the many again: faster than any worker tells."""
SLOW_SECONDS = 1 / 500
"""For each that is more."""


Turn = Callable[[], Awaitable[None]]
"""Lets others have their turn."""
Excess = Callable[[int], Awaitable[None]]
"""Waited for before so many lines, or KiB of them, are read that are more than any agent tells."""


async def slowly(turns: int) -> None:
    """They are read, but slowly."""
    await asyncio.sleep(turns * SLOW_SECONDS)


class StreamError(Exception):
    """The stream could not be opened, or broke; the text says why."""


class ChallengedError(StreamError):
    """The request was refused for its signature, before any line of an answer."""

    def __init__(self, challenge: str | None) -> None:
        """``challenge``: what it is to be signed over, as the other side says; None: it says nothing."""
        super().__init__("HTTP 401")
        self.challenge = challenge


class StrangerError(StreamError):
    """Nothing was sent: who answers is not who was meant."""


class Pace:
    """How fast one is read, over all of its streams: whoever always has more lets others have their turn, and whoever tells more than any
    agent does waits with the rest.
    """

    __slots__ = ("_budget", "_excess", "_turn", "_unpaid")

    def __init__(self, turn: Turn = rounds.turn, excess: Excess = slowly) -> None:
        self._turn, self._excess = turn, excess
        self._budget, self._unpaid = Budget(MANY_TURNS, EARNED_SECONDS), 0

    async def taken(self, turns: int) -> None:
        """So many were taken."""
        self._unpaid += turns
        if self._unpaid < TURNS:
            return
        turns, self._unpaid = self._unpaid, 0
        if not self._budget.take(asyncio.get_running_loop().time(), turns):
            await self._excess(turns)
        await self._turn()


async def lines(
    address: str,
    path: str,
    headers: Mapping[str, str],
    opened: Callable[[], None],
    connect_seconds: float,
    quiet_seconds: float,
    pace: Pace | None = None,
    pin: Fingerprint | None = None,
) -> AsyncIterator[bytes]:
    """Lines of ``GET path`` at ``address`` (``host:port``) as they come, without the empty ones. ``pin``: inside TLS, of who has that
    certificate.

    ``opened`` is called when it was answered. Ends when the other side ends it in good order. Raises :class:`StreamError`, also
    when nothing comes for ``quiet_seconds``, not even an empty line. ``pace``: of all streams of the same agent.
    """
    try:
        async with asyncio.timeout(connect_seconds):
            tls = None if pin is None else CONTEXT
            transport, got = await asyncio.get_running_loop().create_connection(_Bytes, *place(address), ssl=tls)
    except (OSError, TimeoutError) as error:
        raise StreamError(str(error) or type(error).__name__) from error
    try:
        if pin is not None and fingerprint(transport).fingerprint != pin.fingerprint:
            raise StrangerError("somebody else answers there: its certificate is another")
        transport.write(_request(address, path, headers))
        while (head := got.until(b"\r\n\r\n")) is None:
            await got.more(quiet_seconds)
        got.chunked = _is_chunked(head)
        opened()
        rest, pace = bytearray(), pace or Pace()
        while True:
            while (part := got.part()) is None:
                if got.ended and not got.chunked:
                    return
                await got.more(quiet_seconds)
            if not part:
                return
            for line in whole_lines(rest, part):
                if line := line.strip():
                    yield line
                await pace.taken(1)
            if len(rest) > LONGEST:
                raise StreamError(f"a line of more than {LONGEST} bytes")
            got.whole = not rest
            await pace.taken(1 + (len(part) >> 10))
            part = line = b""  # nothing is kept while nothing comes
    except (OSError, TimeoutError, EOFError, ValueError) as error:
        raise StreamError(str(error) or type(error).__name__) from error
    finally:
        transport.abort()  # there is nothing to say goodbye with


class _Bytes(asyncio.BufferedProtocol):
    """What came and was not taken yet. One at a time waits for more."""

    __slots__ = (
        "_behind",
        "_bytes",
        "_heard",
        "_left",
        "_paused",
        "_timer",
        "_transport",
        "_waiting",
        "chunked",
        "ended",
        "whole",
    )

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._left = 0
        self._behind = 0
        self._heard = 0.0
        self._paused = False
        self._transport: asyncio.ReadTransport | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.chunked = False
        """The body comes in chunks."""
        self.whole = False
        """All lines that were taken had their end."""
        self.ended: str | None = None
        """Why no more comes. As text: an error that is kept and raised has all that was under way then, and that has it, until garbage is
        collected."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _read

    def buffer_updated(self, nbytes: int) -> None:
        data = _read[:nbytes]
        if data == EMPTY_LINE and self.whole and self._behind and not self._left and self._bytes == BETWEEN:
            self._heard = asyncio.get_running_loop().time()
            return
        self._bytes += data
        if len(self._bytes) > MOST_UNREAD and self._transport is not None and not self._paused:
            self._transport.pause_reading()
            self._paused = True
        self._wake(None)

    def eof_received(self) -> None:
        self._end("it was ended by the other side")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("it was cut" if exc is None else str(exc) or type(exc).__name__)

    async def more(self, seconds: float) -> None:
        """Wait until more came. Raises TimeoutError, and, when no more comes, what ended it."""
        if self.ended is not None:
            raise EOFError(self.ended)
        if self._transport is not None and self._paused:
            # Only then: it may be closing, and a loop may refuse it for one that is.
            self._transport.resume_reading()
            self._paused = False
        loop = asyncio.get_running_loop()
        self._waiting, self._heard = loop.create_future(), loop.time()
        self._timer = loop.call_later(seconds, self._late, seconds)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if self._timer is not None:
                self._timer.cancel()

    def until(self, mark: bytes) -> bytes | None:
        """Take what there is up to ``mark``, and that; None: it has not come yet."""
        end = self._bytes.find(mark)
        if end < 0:
            if len(self._bytes) > LONGEST_HEAD:
                raise ValueError("not an answer of HTTP/1")
            return None
        return self._take(end + len(mark))

    def part(self) -> bytes | None:
        """Take what there is of the body, empty: that was all of it; None: nothing more has come yet. Raises ValueError: it is no body."""
        if not self.chunked:
            return self._take(len(self._bytes)) or None
        if not self._left:
            size = self._size()
            if not size:
                return None if size is None else b""
            self._left, self._behind = size, 2
        part = self._take(min(len(self._bytes), self._left))
        self._left -= len(part)
        return part or None

    def _size(self) -> int | None:
        """Take the line before a chunk, and the end of the chunk before; how many bytes it has. None: it has not come yet."""
        begin, most = self._behind, self._behind + LONGEST_SIZE
        end = self._bytes.find(b"\r\n", begin, most + 2)
        if end < 0:
            if len(self._bytes) >= most + 2:
                raise ValueError(f"no size of a chunk in {LONGEST_SIZE} bytes")
            return None
        line = self._take(end + 2)
        if line[:begin] != b"\r\n"[:begin]:
            raise ValueError("a chunk does not end where it should")
        size = int(line[begin:].partition(b";")[0], 16)
        if size < 0:
            raise ValueError(f"a chunk of {size} bytes")
        return size

    def _take(self, size: int) -> bytes:
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        return taken

    def _end(self, why: str) -> None:
        self.ended = self.ended or why
        self._wake(None)

    def _late(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        left = self._heard + seconds - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._late, seconds)
        else:
            self._wake(TimeoutError(f"nothing came for {seconds:g} s"))

    def _wake(self, error: Exception | None) -> None:
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        if error is not None:
            waiting.set_exception(error)
        else:
            waiting.set_result(None)


def _request(address: str, path: str, headers: Mapping[str, str]) -> bytes:
    asked = {"Host": address, "Accept": "application/x-ndjson", **headers}
    return "\r\n".join([f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.items()), "", ""]).encode()


def _is_chunked(head: bytes) -> bool:
    """Whether the body comes in chunks. Raises StreamError unless ``head`` is that of an answer with a body."""
    first, *fields = head.split(b"\r\n")
    status = first.split(None, 2)
    if len(status) < 2 or not status[0].startswith(b"HTTP/1."):
        raise StreamError("not an answer of HTTP/1")
    said = {name.strip().lower(): value.strip() for name, _, value in (field.partition(b":") for field in fields)}
    if status[1] == b"401":
        challenge = said.get(_CHALLENGE)
        raise ChallengedError(None if challenge is None else challenge.decode(errors="replace"))
    if status[1] != b"200":
        raise StreamError(f"HTTP {status[1][:20].decode(errors='replace')}")
    return said.get(b"transfer-encoding", b"").lower() == b"chunked"
