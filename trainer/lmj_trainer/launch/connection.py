"""A connection between two launchers: words as lines, beats, and the notice of a peer that is silent."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable

from pydantic import ValidationError

from lmj_trainer.launch.words import Word, WordKind

BEAT_SECONDS = 2.0
SILENT_SECONDS = 8.0
"""A peer's machine that acknowledges nothing for so long is lost. It does so for a process that is busy."""
STUCK_SECONDS = 60.0
"""A peer that says nothing for so long is lost, though its machine is there."""
_TCP_USER_TIMEOUT = 18  # of Linux; Python's socket module lacks the name on others


class LineError(Exception):
    """The peer is gone, or says what it must not; the text says which."""


class Connection:
    """To one peer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        opened: socket.socket | None = writer.get_extra_info("socket")
        if opened is not None and opened.family in (socket.AF_INET, socket.AF_INET6):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if sys.platform == "linux":
                opened.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, round(SILENT_SECONDS * 1000))

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

    async def closed(self, seconds: float) -> None:
        """Wait until it is, or for ``seconds``."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._writer.wait_closed()
