"""A connection between two launchers: words as lines, beats, and the notice of a peer that is silent."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from lmj_trainer.launch.words import LONGEST_WORD, Word, WordKind
from lmj_trainer.transport.flow import set_timeout

BEAT_SECONDS = 2.0
SILENT_SECONDS = 8.0
"""A peer's machine that acknowledges nothing for so long is lost. It does so for a process that is busy."""
STUCK_SECONDS = 60.0
"""A peer that says nothing for so long is lost, though its machine is there."""
_CHUNK_BYTES = 1 << 20
"""Of a file, in memory at a time."""


class LineError(Exception):
    """The peer is gone, or says what it must not; the text says which."""


async def connect(address: str, seconds: float) -> "Connection":
    """To the launcher that listens at ``address``. Raises OSError, also when that takes longer than ``seconds``."""
    host, port = split_address(address)
    async with asyncio.timeout(seconds):
        return Connection(*await asyncio.open_connection(host, port, limit=LONGEST_WORD))


def split_address(address: str) -> tuple[str, int]:
    """``HOST:PORT`` as a pair, without the key that may follow."""
    host, _, port = address.partition("#")[0].rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Connection:
    """To one peer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        opened: socket.socket | None = writer.get_extra_info("socket")
        if opened is not None and opened.family in (socket.AF_INET, socket.AF_INET6):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if sys.platform == "linux":
                set_timeout(opened, round(SILENT_SECONDS * 1000))

    def say(self, word: Word) -> None:
        """Send ``word``; to one that is gone nothing is said, which :meth:`hear` tells."""
        if not self._writer.is_closing():
            self._writer.write(word.to_json().encode() + b"\n")

    async def hear(self, seconds: float = STUCK_SECONDS) -> Word:
        """The next word. Raises LineError when there is none within ``seconds``, or it is none."""
        try:
            async with asyncio.timeout(seconds):
                line = await self._reader.readline()
        except TimeoutError:
            # It may be the kernel's, too, which noticed first.
            raise LineError(f"it said nothing for {seconds:g} s, or its machine did not answer") from None
        except (OSError, ValueError) as error:
            raise LineError(str(error)) from None
        if not line.endswith(b"\n"):
            raise LineError("it closed the connection")
        try:
            return Word.model_validate_json(line)
        except ValidationError:
            raise LineError(f"it said {line[:80]!r}") from None

    async def send(self, path: Path, size: int) -> None:
        """Send the first ``size`` bytes of the file. Raises LineError: it has fewer, or the peer takes none of them for long."""
        try:
            with path.open("rb") as file:
                while size > 0:
                    chunk = file.read(min(size, _CHUNK_BYTES))
                    if not chunk:
                        raise LineError(f"{path.name} has become shorter")
                    size -= len(chunk)
                    self._writer.write(chunk)
                    async with asyncio.timeout(STUCK_SECONDS):
                        await self._writer.drain()
        except OSError as error:  # a time-out, too
            raise LineError(str(error) or f"it took nothing for {STUCK_SECONDS:g} s") from None

    async def receive(self, path: Path, size: int, seen: Callable[[], None]) -> None:
        """Write the next ``size`` bytes into a new file. ``seen``: is called as they come. Raises LineError, and OSError of the file."""
        with path.open("wb") as file:
            while size > 0:
                try:
                    async with asyncio.timeout(STUCK_SECONDS):
                        chunk = await self._reader.read(min(size, _CHUNK_BYTES))
                except OSError as error:
                    raise LineError(str(error) or f"it sent nothing for {STUCK_SECONDS:g} s") from None
                if not chunk:
                    raise LineError("it closed the connection")
                size -= len(chunk)
                file.write(chunk)
                seen()

    async def beat(self, lively: Callable[[], bool]) -> None:
        """Say every now and then that this one is there, and whether it has shown signs of life; for ever."""
        while True:
            self.say(Word(kind=WordKind.BEAT, lively=lively()))
            await asyncio.sleep(BEAT_SECONDS)

    def finish(self) -> None:
        """Say nothing more; what was said arrives. The peer closes the connection."""
        if not self._writer.is_closing():
            with contextlib.suppress(OSError):
                self._writer.write_eof()

    def close(self) -> None:
        """End it, when what was said is sent."""
        self._writer.close()

    def abort(self) -> None:
        """End it at once: what was not sent yet is dropped."""
        self._writer.transport.abort()

    async def closed(self, seconds: float) -> None:
        """Wait until it is, or for ``seconds``."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._writer.wait_closed()
