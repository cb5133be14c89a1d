"""Where messages wait for the compute thread."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from lmj_trainer.transport.envelope import Envelope, Kind

BOUND = 4096
"""Messages of one sender that wait. Far more than a rank has under way to another, however many there are: twice as many micro-batches as
there are stages, the pieces of one exchange of sums, a word of each kind at a boundary. So reaching it is a bug, not load."""

PROMISE_SECONDS = 0.5
"""Who is to leave a view, and has said that it is prepared, waits so long for the answer: others may count on it already."""


_Name = tuple[Kind, int, int]
"""Kind, step and index of a message."""


class ViewBrokenError(Exception):
    """The view cannot go on: a peer is lost, a newer view came, or this worker is to leave. The text says which."""

    def __init__(self, reason: str, rank: int | None = None) -> None:
        """``rank``: the lost peer, when it is one."""
        super().__init__(reason)
        self.rank = rank


class Inbox:
    """Messages of the current view by sender and name, and those of views that are still to be joined. Safe for any number of threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._view = 0
        self._messages: dict[int, dict[int, dict[_Name, Any]]] = {}
        """By view and sender."""
        self._broken: tuple[str, int | None] | None = None
        self._lost: set[int] = set()
        self._newest, self._newest_reason = 0, ""
        self._diverted: dict[Kind, Callable[[Envelope], None]] = {}

    def divert(self, kind: Kind, call: Callable[[Envelope], None]) -> None:
        """Have ``call`` told of every message of ``kind`` in the current view, in whatever thread it came: nobody takes those."""
        with self._changed:
            self._diverted[kind] = call

    @property
    def view(self) -> int:
        """Number of the view being served."""
        return self._view

    @property
    def waiting(self) -> int:
        """Messages of the view being served that nobody has taken yet."""
        with self._changed:
            return sum(map(len, self._messages.get(self._view, {}).values()))

    def open(self, view: int) -> None:
        """Serve ``view`` from now on; messages of older ones are dropped."""
        with self._changed:
            if view <= self._view:
                raise ValueError(f"view {view} is not newer than {self._view}")
            self._view = view
            self._lost.clear()
            self._broken = (self._newest_reason, None) if view < self._newest else None
            self._messages = {number: messages for number, messages in self._messages.items() if number >= view}
            early = [
                Envelope(view, *name, sender, messages.pop(name))
                for sender, messages in self._messages.setdefault(view, {}).items()
                for name in list(messages)
                if name[0] in self._diverted
            ]
            self._changed.notify_all()
        for envelope in early:
            self._diverted[envelope.kind](envelope)

    def put(self, envelope: Envelope) -> bool:
        """Keep ``envelope``; False when its view is over (it is dropped)."""
        with self._changed:
            if envelope.view < self._view:
                return False
            diverted = self._diverted.get(envelope.kind) if envelope.view == self._view else None
            if diverted is None:
                messages = self._messages.setdefault(envelope.view, {}).setdefault(envelope.sender, {})
                if len(messages) >= BOUND:
                    self._broken = f"{BOUND} messages of rank {envelope.sender} wait unread: the newest is {envelope.key}", None
                else:
                    messages[envelope.kind, envelope.step, envelope.index] = envelope.payload
                self._changed.notify_all()
        if diverted is not None:
            diverted(envelope)
        return True

    def fail(self, view: int, reason: str, rank: int | None = None) -> None:
        """Break ``view``, because peer ``rank`` is lost: every waiter, now and later, gets :class:`ViewBrokenError`. The first reason stays."""
        with self._changed:
            if view == self._view:
                if rank is not None:
                    self._lost.add(rank)
                self._broken = self._broken or (reason, rank)
                self._changed.notify_all()

    def supersede(self, view: int, reason: str) -> None:
        """Break every view older than ``view``: the one being served, and one that is only joined after this call."""
        with self._changed:
            if view > self._newest:
                self._newest, self._newest_reason = view, reason
            if view > self._view and self._broken is None:
                self._broken = reason, None
                self._changed.notify_all()

    def check(self) -> None:
        """Raise ViewBrokenError if the view is broken."""
        with self._changed:
            if self._broken is not None:
                raise ViewBrokenError(*self._broken)

    def poll(self, kind: Kind, step: int, index: int, sender: int) -> bool:
        """Whether the message is there."""
        self.check()
        return (kind, step, index) in self._messages[self._view].get(sender, ())

    def take(
        self, kind: Kind, step: int, index: int, sender: int, timeout: float, view: int | None = None, *, promised: bool = False
    ) -> Any:
        """Wait for a message of ``view`` (None: the current one) and remove it. ``promised``: ``sender`` may count on this rank by now, so that
        one that is not lost is waited for yet when the view breaks.

        Raises ViewBrokenError when the view breaks or is over, or ``timeout`` seconds pass.
        """
        name = (kind, step, index)
        deadline, latest = time.monotonic() + timeout, math.inf
        with self._changed:
            view = self._view if view is None else view
            while True:
                if view != self._view:
                    raise ViewBrokenError(f"view {view} is over")
                messages = self._messages[self._view].get(sender, {})
                if name in messages and (promised or self._broken is None):
                    return messages.pop(name)
                now = time.monotonic()
                if self._broken is not None:
                    latest = min(latest, now + PROMISE_SECONDS)
                    if not promised or sender in self._lost or now >= latest:
                        raise ViewBrokenError(*self._broken)
                if now >= deadline:
                    raise ViewBrokenError(f"no {kind} {index} of step {step} from rank {sender} within {timeout:g} s", sender)
                self._changed.wait(min(deadline, latest) - now)
