"""Where the parts of a stream wait for the follower's compute thread, which takes them in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from lmj_trainer.follow.parts import Begin, Part

Done = Callable[[str | None, int], None]
"""Told once when a part was taken into memory (None), or why it was not; with the answer to a Begin."""


class FeedOverError(Exception):
    """The stream goes on no more; the text says why."""


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
        self._next = 0
        self._parts: dict[int, tuple[Part, Done]] = {}
        self._over: str | None = None
        self._offer: Callable[[Offer], None] | None = None

    def listen(self, offer: Callable[[Offer], None] | None) -> None:
        """Have ``offer`` called, in any thread, when a stream begins; None: streams are refused, for this worker has other work."""
        with self._changed:
            self._offer = offer

    def put(self, part: Part, done: Done) -> None:
        """A part arrived."""
        refused: list[Done] = []
        refusal = ""
        with self._changed:
            if isinstance(part.body, Begin):
                if self._offer is None:
                    refusal, refused = "this worker follows nobody now", [done]
                elif part.stream == self._stream:
                    refusal, refused = "this stream has begun before", [done]
                else:
                    refusal = "another stream has begun"
                    refused = self._end(refusal)
                    self._stream, self._next, self._over = part.stream, 1, None
                    self._offer(Offer(part.stream, part.body, done))
            elif part.stream != self._stream:
                refusal, refused = "the stream is over", [done]
            elif self._over is not None:
                refusal, refused = self._over, [done]
            else:
                self._parts[part.number] = part, done
                self._changed.notify_all()
        _refuse(refused, refusal)

    def take(self, stream: int, timeout: float) -> tuple[Part, Done] | None:
        """The next part of ``stream``; None: nothing within ``timeout`` seconds. Raises FeedOverError when the stream is over."""
        with self._changed:
            self._changed.wait_for(lambda: stream != self._stream or self._over is not None or self._next in self._parts, timeout)
            if stream != self._stream:
                raise FeedOverError("another stream has begun")
            if self._next in self._parts:  # what came before the end is taken
                self._next += 1
                return self._parts.pop(self._next - 1)
            if self._over is not None:
                raise FeedOverError(self._over)
            return None

    def stop(self, reason: str) -> None:
        """The stream is over, when all that came of it is taken."""
        with self._changed:
            self._over = self._over or reason
            self._changed.notify_all()

    def close(self, stream: int, reason: str) -> None:
        """``stream`` is over; what was not taken of it is refused."""
        refused: list[Done] = []
        with self._changed:
            if stream == self._stream:
                refused = self._end(reason)
        _refuse(refused, reason)

    def _end(self, reason: str) -> list[Done]:
        """Who is to be told that his part was not taken."""
        parts, self._parts = self._parts, {}
        self._over = self._over or reason
        self._changed.notify_all()
        return [done for _, done in parts.values()]


def _refuse(refused: list[Done], reason: str) -> None:
    # Without the lock: who is told may wait for a thread that has a part to put.
    for done in refused:
        done(reason, -1)
