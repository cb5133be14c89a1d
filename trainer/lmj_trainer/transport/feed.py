"""Where the parts of a stream wait for the follower's compute thread, which takes them in order."""

from __future__ import annotations

import threading
import time
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


class Feed:
    """At most one stream at a time; another that begins ends it: the operator says who is followed, and clocks of nodes differ. Safe for any
    number of threads.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stream: int | None = None
        self._next: int
        """Of the stream: the part that is to be taken next."""
        self._parts: dict[int, tuple[Part, Done]] = {}
        self._over: str | None = None
        """Nothing comes any more."""
        self._ends: tuple[str, float, int] | None = None
        """It is to end: why, by when at the latest, and the newest part that was there then."""
        self._refusal: int
        """The answer to what is refused."""
        self._offer: Callable[[Offer], None] | None = None
        self._begin: Done | None = None
        """The answer to the stream's beginning, which may still be due."""

    def listen(self, offer: Callable[[Offer], None] | None) -> None:
        """Have ``offer`` called, in any thread, when a stream begins; None: streams are refused, for this worker has other work, and so is
        one that was not taken up yet.
        """
        refused: list[Done] = []
        reason = "this worker follows nobody now"
        with self._changed:
            self._offer = offer
            if offer is None:
                refused = self._end(reason)
        _refuse(refused, reason, -1)

    def is_over(self, stream: int) -> bool:
        """Whether nothing comes of ``stream`` any more."""
        with self._changed:
            return stream != self._stream or self._over is not None

    @property
    def waiting(self) -> int:
        """Parts that are here and were not taken yet."""
        with self._changed:
            return len(self._parts)

    def put(self, part: Part, done: Done) -> None:
        """A part arrived."""
        refused: list[Done] = []
        refusal, answer = "", -1
        with self._changed:
            if isinstance(part.body, Begin):
                if self._offer is None:
                    refusal, refused = "this worker follows nobody now", [done]
                elif part.stream == self._stream:
                    refusal, refused = "this stream has begun before", [done]
                else:
                    refusal = "another stream has begun"
                    refused = self._end(refusal)
                    self._stream, self._next, self._over, self._ends, self._refusal = part.stream, 1, None, None, -1
                    self._begin = _Once(done)
                    self._offer(Offer(part.stream, part.body, self._begin))
            elif part.stream != self._stream:
                refusal, refused = "the stream is over", [done]
            elif self._over is not None:
                refusal, refused, answer = self._over, [done], self._refusal
            else:
                self._parts[part.number] = part, done
                self._changed.notify_all()
        _refuse(refused, refusal, answer)

    def take(self, stream: int, timeout: float, *, promised: bool = False) -> tuple[Part, Done] | None:
        """The next part of ``stream``; None: nothing within ``timeout`` seconds. Raises FeedOverError when the stream is over.

        ``promised``: its source may count on this worker by now, so that one that is not lost is waited for yet when the stream is to end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_news(stream, promised), timeout)
            if stream != self._stream:
                raise FeedOverError("another stream has begun")
            wanted = self._ends is None or (promised and time.monotonic() < self._ends[1])
            # What came before the end is taken.
            if self._next in self._parts and (wanted or (self._ends is not None and self._next <= self._ends[2])):
                self._next += 1
                return self._parts.pop(self._next - 1)
            if self._over is not None or not wanted:
                raise FeedOverError(self._ends[0] if self._ends is not None else str(self._over))
            return None

    def _is_news(self, stream: int, promised: bool) -> bool:
        ended = self._over is not None or (self._ends is not None and not promised)
        return stream != self._stream or ended or self._next in self._parts

    def stop(self, reason: str) -> None:
        """The stream is to end, when all that came of it is taken, and what was promised is over."""
        with self._changed:
            if self._ends is None:
                self._ends = reason, time.monotonic() + PROMISE_SECONDS, max(self._parts, default=0)
            self._changed.notify_all()

    def lose(self, reason: str) -> None:
        """Nothing comes any more."""
        with self._changed:
            self._over = self._over or reason
            self._changed.notify_all()

    def close(self, stream: int, reason: str) -> None:
        """``stream`` is over; what was not taken of it is refused, and what comes yet."""
        with self._changed:
            if stream != self._stream:
                return
            answer = self._refusal = LEFT if self._ends is not None and self._over is None else -1
            refused = self._end(reason)
        _refuse(refused, reason, answer)

    def _end(self, reason: str) -> list[Done]:
        """Who is to be told that his part was not taken."""
        parts, self._parts, begin, self._begin = self._parts, {}, self._begin, None
        self._over = self._over or reason
        self._changed.notify_all()
        return [*([begin] if begin is not None else []), *(done for _, done in parts.values())]


def _refuse(refused: list[Done], reason: str, answer: int) -> None:
    # Without the lock: who is told may wait for a thread that has a part to put.
    for done in refused:
        done(reason, answer)
