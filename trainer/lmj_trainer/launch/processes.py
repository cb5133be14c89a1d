"""The script's processes of one view on this node, by way of the starter. Lives in the launcher's event loop."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

from lmj_trainer.launch.requests import HEAD, Start, asked_to_clear, asked_to_signal, asked_to_start

CLEAR_SECONDS = 30.0
"""Killed processes are gone within so long, unless the kernel holds them."""


class StarterGoneError(Exception):
    """The starter has ended: nobody starts processes any more. Those that it started end with it."""


class Starter:
    """The line to a starter that :func:`fork_starter` made."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changed: asyncio.Event) -> None:
        self._changed = changed
        self._writer = writer
        self._next = 0
        self.pids: dict[int, int] = {}
        """Of living processes, by their numbers."""
        self.ends: deque[tuple[int, int]] = deque()
        """``(number, exit code)``, as processes end; a negative code is a signal. One for each that was started."""
        self.gone = False
        self._cleared = asyncio.Event()
        self._hearing = asyncio.create_task(self._hear(reader))

    @classmethod
    async def connect(cls, line: socket.socket, changed: asyncio.Event) -> "Starter":
        """Over ``line``, which is this one's from now on. ``changed``: is set whenever a process ends, or the starter."""
        return cls(*await asyncio.open_connection(sock=line), changed)

    def start(self, argv: Sequence[str], cwd: str, environment: dict[str, str], cores: Sequence[int]) -> int:
        """Have a process; the number by which its end is told."""
        self._next += 1
        self._writer.write(asked_to_start(Start(self._next, argv, cwd, environment, cores)))
        return self._next

    def signal(self, number: int, which: int) -> None:
        """Have signal ``which`` sent to process ``number``."""
        self._writer.write(asked_to_signal(number, which))

    async def clear(self) -> None:
        """End all that is left of all processes, at once. Raises StarterGoneError, and TimeoutError."""
        self._cleared.clear()
        self._writer.write(asked_to_clear())
        async with asyncio.timeout(CLEAR_SECONDS):
            await self._cleared.wait()
        self.require()
        self.pids.clear()
        self.ends.clear()

    def require(self) -> None:
        """Raise StarterGoneError if it has ended."""
        if self.gone:
            raise StarterGoneError("the process that starts the script's processes has ended")

    async def close(self) -> None:
        """It ends all processes, and itself."""
        self._hearing.cancel()
        self._writer.close()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                head = await reader.readexactly(HEAD.size)
                self._take(json.loads(await reader.readexactly(HEAD.unpack(head)[0])))
        except (asyncio.IncompleteReadError, ConnectionError):
            # The kernel has ended its processes with it; what these left behind is in their groups.
            for pid in self.pids.values():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            self.gone = True
            self._changed.set()
            self._cleared.set()

    def _take(self, told: dict[str, Any]) -> None:
        if "started" in told:
            self.pids[told["started"]] = told["pid"]
        elif "ended" in told:
            self.pids.pop(told["ended"], None)
            self.ends.append((told["ended"], told["code"]))
            self._changed.set()
        elif "cleared" in told:
            self._cleared.set()
