"""The events of an agent's life, numbered, as many as fit; what is told of commits is thinned out."""

from bisect import bisect_right
from collections import deque

from lmj_api.protocol import Event, EventKind


class EventLog:
    """A bounded buffer. Times here are ``tick``: seconds of a clock that only goes forward."""

    def __init__(self, size: int = 10_000, commit_interval: float = 1.0) -> None:
        """``size``: events kept. ``commit_interval``: seconds between commits that are told; of those between the newest is. Who reads late is
        told the first and the newest of many in a row: an operator that starts again reads the whole life of each of its agents.
        """
        self._events: deque[Event] = deque(maxlen=size)
        self._interval = commit_interval
        self._commit_tick: float | None = None
        self._pending: Event | None = None
        self._dropped = 0
        """Number of the newest event that did not fit."""
        self.newest = 0
        """Number of the newest event; 0: none yet."""

    def add(self, event: Event, tick: float) -> None:
        """Take ``event``; its number is given here. A commit may be held back, until :attr:`due` at the latest."""
        if event.kind is EventKind.COMMITTED:
            self._pending = event
            self.flush(tick)
            return
        if self._pending is not None:
            # What happened must be told in the order in which it did, so a commit that waits goes first.
            self._publish_commit(self._pending, tick)
        self._publish(event)
        if event.kind is EventKind.JOINED:
            self._commit_tick = None  # the first step of a view says that training goes on: it is told at once

    @property
    def due(self) -> float | None:
        """When a commit that is held back is to be told (:meth:`flush`); None: none is."""
        if self._pending is None or self._commit_tick is None:
            return None
        return self._commit_tick + self._interval

    def flush(self, tick: float) -> None:
        """Tell the commit that was held back, if it is time."""
        if self._pending is not None and (self._commit_tick is None or tick >= self._commit_tick + self._interval):
            self._publish_commit(self._pending, tick)

    def after(self, seq: int, limit: int = 500) -> list[Event]:
        """The first ``limit`` events with numbers above ``seq``. Where some were dropped, a warning in their place says how many."""
        if not self._events or seq >= self.newest:
            return []
        if seq < self._dropped:
            lost = Event(
                seq=self._dropped,
                time=self._events[0].time,
                kind=EventKind.WARNING,
                message=f"{self._dropped - seq} events were dropped: nobody read them in time",
            )
            return [lost, *self.after(self._dropped, limit - 1)]
        start = bisect_right(self._events, seq, key=lambda event: event.seq)
        return [self._events[i] for i in range(start, min(start + limit, len(self._events)))]

    def _publish_commit(self, event: Event, tick: float) -> None:
        self._pending = None
        self._commit_tick = tick
        if len(self._events) > 1 and all(self._events[i].kind is EventKind.COMMITTED for i in (-1, -2)):
            self._events.pop()
        self._publish(event)

    def _publish(self, event: Event) -> None:
        if len(self._events) == self._events.maxlen:
            self._dropped = self._events[0].seq
        self.newest += 1
        self._events.append(event.model_copy(update={"seq": self.newest}))
