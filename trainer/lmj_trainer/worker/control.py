"""The worker's line to its agent: events out, commands in, over one socket."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from lmj_api.protocol import Command, CommandKind, Event, EventKind, Recut
from lmj_api.view import Member, View
from lmj_trainer.transport.feed import Offer


class Control:
    """Reads commands in a thread of its own; when the agent is gone, so is the worker: nobody could reach it any more."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[View | Offer | None] = queue.SimpleQueue()
        self._on_newer_view: Callable[[int, str], None] = lambda number, reason: None
        self._on_follower: Callable[[Member | None], None] = lambda member: None
        self._follower: Member | None = None
        self._on_recut: Callable[[Recut | None], None] = lambda recut: None
        self._recut: Recut | None = None
        self.draining = threading.Event()
        self.handover = 0
        """Number of the newest view that is to be left at a boundary, because this rank's followers take over; 0: none."""
        self.pause = 0
        """The same, because the next view is to have fewer members."""
        threading.Thread(target=self._read, name="control", daemon=True).start()

    def on_newer_view(self, call: Callable[[int, str], None]) -> None:
        """Have ``call(number, reason)`` called, in the reading thread, when older views are to be left for view ``number``."""
        self._on_newer_view = call

    def on_follower(self, call: Callable[[Member | None], None]) -> None:
        """Have ``call(member)`` called, in the reading thread, when another worker is to follow this one, or none any more."""
        self._on_follower = call
        call(self._follower)

    def on_recut(self, call: Callable[[Recut | None], None]) -> None:
        """Have ``call`` called, in the reading thread, when other workers of another cut are to follow this one, or none any more."""
        self._on_recut = call
        call(self._recut)

    def offer(self, offer: Offer) -> None:
        """A stream to follow began: as an order from the agent. Any thread may."""
        self._orders.put(offer)

    @property
    def ordered(self) -> bool:
        """Whether an order waits."""
        return not self._orders.empty()

    def emit(self, kind: EventKind, message: str = "", **details: Any) -> None:
        """Tell the agent."""
        line = Event(time=time.time(), kind=kind, message=message, **details).to_json().encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            _leave()

    def next_order(self) -> View | Offer | None:
        """Wait for what to do next, however long it takes: the agent ends this process when it is not needed. None: drain.

        Of several the newest view counts, else the newest offer: a stream that is not taken up ends.
        """
        orders = [self._orders.get()]
        while not self._orders.empty():
            orders.append(self._orders.get())
        views = [order for order in orders if isinstance(order, View)]
        if views:
            return views[-1]
        return orders[-1] if None not in orders else None

    def _read(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                command = Command.model_validate_json(line)
                if command.kind is CommandKind.DRAIN:
                    self.draining.set()
                    self._orders.put(None)
                elif command.kind is CommandKind.LEAVE and command.number is not None:
                    self._on_newer_view(command.number + 1, f"view {command.number} lost a member")
                elif command.kind is CommandKind.HANDOVER and command.number is not None:
                    self.handover = max(self.handover, command.number)
                elif command.kind is CommandKind.PAUSE and command.number is not None:
                    self.pause = max(self.pause, command.number)
                elif command.kind is CommandKind.FOLLOWER:
                    self._follower = command.follower
                    self._on_follower(self._follower)
                elif command.kind is CommandKind.RECUT:
                    self._recut = command.recut
                    self._on_recut(self._recut)
                elif command.view is not None:
                    self._orders.put(command.view)
                    self._on_newer_view(command.view.number, f"view {command.view.number}: {command.view.reason}")
        _leave()


def _leave() -> None:
    # From a thread, and with RPC threads running: nothing that Python does at exit is wanted.
    os._exit(1)
