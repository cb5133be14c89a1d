"""An agent's stream of events: lines over HTTP, by hand.

A job has one open to each of its agents for its whole life: thousands, on which little comes. What a general HTTP client keeps for each
(buffers, parsers, headers) is more than all that is known of the agent.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

LONGEST = 1 << 24
"""Bytes of a line, and of a chunk: it holds as many events as were not heard while nobody listened."""


class StreamError(Exception):
    """The stream could not be opened, or broke; the text says why."""


async def lines(
    address: str, path: str, headers: Mapping[str, str], opened: Callable[[], None], connect_seconds: float, quiet_seconds: float
) -> AsyncIterator[bytes]:
    """Lines of ``GET path`` at ``address`` (``host:port``) as they come, without the empty ones.

    ``opened`` is called when it was answered. Ends when the other side ends it in good order. Raises :class:`StreamError`, also
    when nothing comes for ``quiet_seconds``, not even an empty line.
    """
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(connect_seconds):
            transport, got = await asyncio.get_running_loop().create_connection(_Bytes, host.strip("[]"), int(port))
    except (OSError, TimeoutError) as error:
        raise StreamError(str(error) or type(error).__name__) from error
    try:
        transport.write(_request(address, path, headers))
        while (head := got.until(b"\r\n\r\n")) is None:
            await got.more(quiet_seconds)
        chunked = _is_chunked(head)
        opened()
        rest = b""
        while True:
            while (piece := got.chunk() if chunked else got.all()) is None:
                if got.ended and not chunked:
                    return
                await got.more(quiet_seconds)
            if not piece:
                return
            rest += piece
            while (end := rest.find(b"\n")) >= 0:
                line, rest = rest[:end].strip(), rest[end + 1 :]
                if line:
                    yield line
            if len(rest) > LONGEST:
                raise StreamError(f"a line of more than {LONGEST} bytes")
            piece = line = b""  # nothing is kept while nothing comes
    except (OSError, TimeoutError, EOFError, ValueError) as error:
        raise StreamError(str(error) or type(error).__name__) from error
    finally:
        transport.abort()  # there is nothing to say goodbye with


class _Bytes(asyncio.Protocol):
    """What came and was not taken yet. One at a time waits for more."""

    __slots__ = ("_bytes", "_waiting", "ended")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._waiting: asyncio.Future[None] | None = None
        self.ended: Exception | None = None
        """Why no more comes."""

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        self._wake(None)

    def eof_received(self) -> None:
        self._end(EOFError("it was ended by the other side"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or EOFError("it was cut"))

    async def more(self, seconds: float) -> None:
        """Wait until more came. Raises TimeoutError, and, when no more comes, what ended it."""
        if self.ended is not None:
            raise self.ended
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        late = loop.call_later(seconds, self._late, seconds)
        try:
            await self._waiting
        finally:
            self._waiting = None
            late.cancel()

    def until(self, mark: bytes) -> bytes | None:
        """Take what there is before ``mark``, and ``mark``; None: it has not come yet."""
        end = self._bytes.find(mark)
        if end < 0:
            if len(self._bytes) > LONGEST:
                raise ValueError("not an answer of HTTP/1")
            return None
        return self._take(end, len(mark))

    def chunk(self) -> bytes | None:
        """Take a chunk, empty: it was the last; None: it has not come yet."""
        begin = self._bytes.find(b"\r\n")
        if begin < 0:
            return None
        size = int(self._bytes[:begin].partition(b";")[0], 16)
        if size > LONGEST:
            raise ValueError(f"a chunk of {size} bytes")
        if len(self._bytes) < begin + size + 4:
            return None
        del self._bytes[: begin + 2]
        return self._take(size, 2)

    def all(self) -> bytes | None:
        """Take all that came; None: nothing did."""
        return self._take(len(self._bytes), 0) if self._bytes else None

    def _take(self, size: int, behind: int) -> bytes:
        taken = bytes(self._bytes[:size])
        del self._bytes[: size + behind]
        return taken

    def _end(self, why: Exception) -> None:
        self.ended = self.ended or why
        self._wake(None)

    def _late(self, seconds: float) -> None:
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
    if status[1] != b"200":
        raise StreamError(f"HTTP {status[1].decode(errors='replace')}")
    said = {name.strip().lower(): value.strip().lower() for name, _, value in (field.partition(b":") for field in fields)}
    return said.get(b"transfer-encoding") == b"chunked"
