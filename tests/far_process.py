"""The pod's side as a process of this machine, below a folder that stands for the volume."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lmj_operator.client.volume.bundle import command
from lmj_operator.client.volume.talk import PodLine, Talk, talking
from lmj_operator.client.volume.trouble import Broken


class Program:
    """As :class:`lmj_operator.client.volume.exec.Exec`; the connection breaks after ``limit`` bytes to it."""

    def __init__(self, process: asyncio.subprocess.Process, limit: int | None) -> None:
        self._process, self._limit = process, limit
        self.code: int | None = None

    async def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if self._limit is not None and self._limit < len(data):
            self._process.stdin.close()
            raise Broken("cut")
        self._limit = None if self._limit is None else self._limit - len(data)
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def received(self) -> AsyncIterator[tuple[int, bytes]]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        while data := await self._process.stdout.read(1 << 16):
            yield 1, data
        yield 2, await self._process.stderr.read()
        self.code = await self._process.wait()


@asynccontextmanager
async def far_side(root: Path, limit: int | None = None) -> AsyncIterator[Talk]:
    _, *rest = command(str(root))
    pipe = asyncio.subprocess.PIPE
    # -I: nothing of this checkout is known there.
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", *rest, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with talking(PodLine(Program(process, limit)), "reviews") as talk:
            yield talk
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


class Watched:
    """What a watcher is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.files = self.size = 0

    def total(self, files: int, size: int) -> None:
        pass

    def moved(self, size: int) -> None:
        self.size += size

    def file(self) -> None:
        self.files += 1

    def say(self, line: str) -> None:
        self.said.append(line)
