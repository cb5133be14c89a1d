"""Where the parts of streams wait for the follower's compute thread, which takes those of each in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lmj_trainer.transport.inbox import PROMISE_SECONDS
from lmj_trainer.transport.parts import Begin, Part

Done = Callable[[str | None, int], None]
"""Told once when a part was taken into memory (None), with the answer to a Begin or how many parts wait behind; or why not, with -1 or LEFT."""
LEFT = -2
"""The part was not taken because the follower was told to leave the view: its source must not go on in it without the follower."""


class FeedOverError(Exception):
    """The stream goes on no more; the text says why."""


class _Once:
    """An answer that is given once, by the first caller."""

    def __init__(self, done: Done) -> None:
        self._done, self._given, self._lock = done, False, threading.Lock()

    def __call__(self, problem: str | None, answer: int) -> None:
        with self._lock:
            given, self._given = self._given, True
        if not given:
            self._done(problem, answer)


@dataclass(frozen=True)
class Offer:
    """A stream that begins."""

    stream: int
    begin: Begin
    done: Done


class _Line:
    """One stream."""

    def __init__(self, begin: Begin, done: Done) -> None:
        self.names = begin.names
        self.next = 1
        """The part that is to be taken next."""
        self.parts: dict[int, tuple[Part, Done]] = {}
        self.begin: Done | None = _Once(done)
        """The answer to its beginning, which may still be due."""
        self.newest: int | None = None
        """The newest part that was there when all was to end; None: nothing is to end."""


class Feed:
    """Streams that a worker follows together: each brings other parameters. One that begins with what another brings already ends all of them:
    the operator says who is followed, and clocks of nodes differ. Safe for any number of threads.

    What is followed together has the number of the stream that it began with.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._first: int | None = None
        """The number of what is followed."""
        self._lines: dict[int, _Line] = {}
        """Its streams, by number; those that have waited longest for their turn first."""
        self._beside: deque[Offer] = deque()
        """Streams that began beside the first, and were not taken up yet."""
        self._over: str | None = None
        """Nothing comes any more."""
        self._ends: tuple[str, float] | None = None
        """All is to end: why, and by when at the latest."""
        self._refusal: int
        """The answer to what is refused."""
        self._offer: Callable[[Offer], None] | None = None

    def listen(self, offer: Callable[[Offer], None] | None) -> None:
        """Have ``offer`` called, in any thread, when a first stream begins; None: streams are refused, for this worker has other work, and so
        is one that was not taken up yet.
        """
        refused: list[Done] = []
        reason = "this worker follows nobody now"
        with self._changed:
            self._offer = offer
            if offer is None:
                refused = self._end(reason)
        _refuse(refused, reason, -1)

    def is_over(self, stream: int) -> bool:
        """Whether nothing comes any more of what began with ``stream``."""
        with self._changed:
            return stream != self._first or self._over is not None

    @property
    def waiting(self) -> int:
        """Parts that are here and were not taken yet."""
        with self._changed:
            return sum(len(line.parts) for line in self._lines.values())

    def put(self, part: Part, done: Done) -> None:
        """A part arrived."""
        refused: list[Done] = []
        refusal, answer = "", -1
        with self._changed:
            line = self._lines.get(part.stream)
            if isinstance(part.body, Begin):
                if self._offer is None:
                    refusal, refused = "this worker follows nobody now", [done]
                elif line is not None:
                    refusal, refused = "this stream has begun before", [done]
                else:
                    refusal = "another stream has begun"
                    refused = self._begun(part.stream, part.body, done, refusal)
            elif line is None:
                refusal, refused = "the stream is over", [done]
            elif self._over is not None:
                refusal, refused, answer = self._over, [done], self._refusal
            else:
                line.parts[part.number] = part, done
                self._changed.notify_all()
        _refuse(refused, refusal, answer)

    def _begun(self, stream: int, begin: Begin, done: Done, reason: str) -> list[Done]:
        """Take up a stream; who is to be told that another has begun."""
        line = _Line(begin, done)
        assert line.begin is not None
        offer = Offer(stream, begin, line.begin)
        follows = self._first is not None and self._over is None and self._ends is None
        if follows and all(other.names.isdisjoint(line.names) for other in self._lines.values()):
            self._lines[stream] = line
            self._beside.append(offer)
            self._changed.notify_all()
            return []
        refused = self._end(reason)
        self._first, self._lines, self._over, self._ends, self._refusal = stream, {stream: line}, None, None, -1
        assert self._offer is not None
        self._offer(offer)
        return refused

    def take(self, stream: int, timeout: float, *, promised: bool = False) -> Offer | tuple[Part, Done] | None:
        """The next part of what began with ``stream``, or another stream that begins beside it; None: nothing within ``timeout`` seconds.
        Raises FeedOverError when it is over.

        ``promised``: its sources may count on this worker by now, so that those that are not lost are waited for yet when it is to end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_news(stream, promised), timeout)
            if stream != self._first:
                raise FeedOverError("another stream has begun")
            wanted = self._ends is None or (promised and time.monotonic() < self._ends[1])
            if self._beside and wanted and self._over is None:
                return self._beside.popleft()
            for number, line in self._lines.items():
                # What came before the end is taken.
                if line.next in line.parts and (wanted or (line.newest is not None and line.next <= line.newest)):
                    line.next += 1
                    self._lines[number] = self._lines.pop(number)
                    return line.parts.pop(line.next - 1)
            if self._over is not None or not wanted:
                raise FeedOverError(self._ends[0] if self._ends is not None else str(self._over))
            return None

    def _is_news(self, stream: int, promised: bool) -> bool:
        ended = self._over is not None or (self._ends is not None and not promised)
        return stream != self._first or ended or bool(self._beside) or any(x.next in x.parts for x in self._lines.values())

    def stop(self, reason: str) -> None:
        """All is to end, when all that came is taken, and what was promised is over."""
        with self._changed:
            if self._ends is None:
                self._ends = reason, time.monotonic() + PROMISE_SECONDS
                for line in self._lines.values():
                    line.newest = max(line.parts, default=0)
            self._changed.notify_all()

    def lose(self, reason: str) -> None:
        """Nothing comes any more."""
        with self._changed:
            self._over = self._over or reason
            self._changed.notify_all()

    def close(self, stream: int, reason: str) -> None:
        """What began with ``stream`` is over; what was not taken of it is refused, and what comes yet."""
        with self._changed:
            if stream != self._first:
                return
            answer = self._refusal = LEFT if self._ends is not None and self._over is None else -1
            refused = self._end(reason)
        _refuse(refused, reason, answer)

    def _end(self, reason: str) -> list[Done]:
        """Who is to be told that his part was not taken."""
        refused: list[Done] = []
        for line in self._lines.values():
            begin, line.begin = line.begin, None
            refused += [*([begin] if begin is not None else []), *(done for _, done in line.parts.values())]
            line.parts = {}
        self._beside.clear()
        self._over = self._over or reason
        self._changed.notify_all()
        return refused


def _refuse(refused: list[Done], reason: str, answer: int) -> None:
    # Without the lock: who is told may wait for a thread that has a part to put.
    for done in refused:
        done(reason, answer)
