"""The launcher's line to its agent, in an event loop: events out, orders in."""

import asyncio
import contextlib
import os
import socket
import time
from typing import Any, NoReturn

from lmj_api.protocol import Command, CommandKind, Event, EventKind
from lmj_api.view import View

LONGEST_ORDER = 16 << 20
"""Bytes of a command: a view of 1,024 members fits."""
FLUSH_SECONDS = 5.0


class Orders:
    """What the agent wants, as far as it was told."""

    def __init__(self, changed: asyncio.Event) -> None:
        """``changed``: is set whenever that changes."""
        self._changed = changed
        self.draining = False
        self._next: View | None = None
        self._left = 0
        """Number of the newest view that is to be left at once."""
        self._left_reason = ""
        self._stop = 0
        """The same in order, so that the script can save."""

    def take(self, command: Command) -> None:
        """Note what the agent says."""
        number = command.number or 0
        match command.kind:
            case CommandKind.DRAIN:
                self.draining = True
            case CommandKind.LEAVE:
                self._leave(number, f"view {number} lost a member")
            case CommandKind.HANDOVER | CommandKind.PAUSE:
                self._stop = max(self._stop, number)
            case CommandKind.VIEW if command.view is not None:
                view = command.view
                self._leave(view.number - 1, f"view {view.number}: {view.reason}")
                self._next = view
        self._changed.set()

    def take_view(self) -> View | None:
        """The newest view that is to be joined; once. None: there is none."""
        view, self._next = self._next, None
        return view

    def broken(self, number: int) -> str | None:
        """Why view ``number`` is to be left at once; None: it is not."""
        return self._left_reason if number <= self._left else None

    def stops(self, number: int) -> str | None:
        """Why view ``number`` is to be left in order; None: it is not."""
        if self.draining:
            return "a rank is to leave"
        return "the next view has other members" if number <= self._stop else None

    def _leave(self, number: int, reason: str) -> None:
        if number > self._left:
            self._left, self._left_reason = number, reason


class AgentLine:
    """To the agent. When that is gone so is this process, and its starter sees to the rest: nobody could reach it any more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changed: asyncio.Event) -> None:
        self.orders = Orders(changed)
        self._writer = writer
        self._hearing = asyncio.create_task(self._hear(reader))

    @classmethod
    async def connect(cls, fd: int, changed: asyncio.Event) -> "AgentLine":
        """Over the socket ``fd``. ``changed``: is set whenever there is a new order."""
        return cls(*await asyncio.open_connection(sock=socket.socket(fileno=fd), limit=LONGEST_ORDER), changed)

    def emit(self, kind: EventKind, message: str = "", **details: Any) -> None:
        """Tell the agent."""
        self._writer.write(Event(time=time.time(), kind=kind, message=message, **details).to_json().encode() + b"\n")

    async def flush(self) -> None:
        """Have it told."""
        self._writer.transport.set_write_buffer_limits(0)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._writer.drain()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while (line := await reader.readline()).endswith(b"\n"):
                self.orders.take(Command.model_validate_json(line))
        _leave()


def _leave() -> NoReturn:
    os._exit(1)
