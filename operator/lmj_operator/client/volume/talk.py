"""Messages with the pod's side: sent and received at the same time, so that neither end waits for the other."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol

from lmj_operator.client.volume.bundle import program
from lmj_operator.client.volume.far.frames import Frames, Header, packed
from lmj_operator.client.volume.far.tree import shown
from lmj_operator.client.volume.trouble import Broken, VolumeError, far_error

BEAT_SECONDS = 10.0
"""A message goes at least so often: what is between cuts connections that are silent."""
STALL_SECONDS = 120.0
"""Nothing moves in either direction for so long: the connection is dead, though nobody said so."""


class Line(Protocol):
    """Bytes to the pod's side and back."""

    async def send(self, data: bytes) -> None:
        """Raises Broken."""

    def output(self) -> AsyncIterator[bytes]:
        """What it writes. Raises VolumeError and Broken."""


class Talk:
    """One conversation about files of ``claim``."""

    def __init__(self, line: Line, claim: str) -> None:
        self._line, self._claim = line, claim
        self._output = line.output()
        self._frames = Frames()
        self._come: deque[tuple[Header, bytes]] = deque()
        self._sending = asyncio.Lock()
        self._moved = time.monotonic()

    async def send(self, header: Header, data: bytes = b"") -> None:
        """A message, or what it begins with."""
        await self._send(packed(header, data))

    async def receive(self) -> tuple[Header, bytes]:
        """The next message. Raises VolumeError for an error that it tells, and Broken."""
        while True:
            while not self._come:
                self._come.extend(self._frames.fed(await self._more()))
            header, data = self._come.popleft()
            if header["op"] == "error":
                raise far_error(header, self._claim)
            if header["op"] != "busy":
                return header, data

    async def ask(self, header: Header) -> Header:
        """The answer to one question."""
        await self.send(header)
        return (await self.receive())[0]

    async def start(self) -> None:
        """Send the program, and wait until it runs."""
        await self._send(program())
        if (await self.receive())[0]["op"] != "ready":
            raise VolumeError("the pod's side does not speak this version")

    async def beat(self) -> None:
        """Send something now and then, for ever."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            if not self._sending.locked():
                await self.send({"op": "beat"})

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            await self._line.send(data)
        self._moved = time.monotonic()

    async def _more(self) -> bytes:
        reading = asyncio.ensure_future(anext(self._output, None))
        try:
            while not (await asyncio.wait([reading], timeout=BEAT_SECONDS))[0]:
                if time.monotonic() - self._moved > STALL_SECONDS:
                    raise Broken(f"nothing was heard from the pod for {STALL_SECONDS:g} s")
        finally:
            if not reading.done():
                reading.cancel()
                await asyncio.wait([reading])
        data = reading.result()
        if data is None:
            raise Broken("the pod's side ended")
        self._moved = time.monotonic()
        return data


@asynccontextmanager
async def talking(line: Line, claim: str) -> AsyncIterator[Talk]:
    """A conversation that has begun, and ends with the block."""
    talk = Talk(line, claim)
    await talk.start()
    beats = asyncio.create_task(talk.beat())
    try:
        yield talk
    finally:
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)


async def both(sending: Awaitable[None], receiving: Awaitable[None]) -> None:
    """Send and receive at once; where both fail, what was received says why."""
    tasks = [asyncio.ensure_future(sending), asyncio.ensure_future(receiving)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if tasks[0] in done and isinstance(tasks[0].exception(), Broken):
            await asyncio.wait(tasks[1:], timeout=5.0)  # it may have been told what broke
        for task in reversed(tasks):
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class PodLine:
    """The line to a command that runs in a pod. What it says on stderr is kept for the case that it ends."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._said = b""

    async def send(self, data: bytes) -> None:
        """As the protocol says."""
        await self._process.send(data)

    async def output(self) -> AsyncIterator[bytes]:
        """As the protocol says."""
        async for stream, data in self._process.received():
            if stream == 1:
                yield data
            else:
                self._said = (self._said + data)[-4000:]
        lines = [line.strip() for line in self._said.decode(errors="replace").splitlines() if line.strip()]
        if self._process.code == 137:
            raise Broken("the pod's side was killed (137): out of memory, or the pod was deleted")
        if lines:
            raise VolumeError(f"the pod's side failed: {shown(lines[-1])}")
        raise Broken(f"the pod's side ended with exit code {self._process.code}")


class Process(Protocol):
    """A command that runs somewhere else: :class:`lmj_operator.client.volume.exec.Exec`."""

    code: int | None

    async def send(self, data: bytes) -> None:
        """To its standard input."""

    def received(self) -> AsyncIterator[tuple[int, bytes]]:
        """What it writes, with the number of the stream."""
