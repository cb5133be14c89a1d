"""Turns at what all jobs share: whoever wants many waits behind whoever wants one."""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Key = tuple[str, str]
"""Namespace and name of a job."""
NOBODY: Key = ("", "")
JOB: ContextVar[Key] = ContextVar("JOB", default=NOBODY)
"""For which job a task works; the operator itself where it works for none."""
CREDIT = 50
"""Turns that a namespace may have before others who had more. It has as many again when others have had so many."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    granted: asyncio.Future[None]
    turns: int


class Turns:
    """``at_once`` turns at the same time, of which one job has ``of_one`` at most.

    Where several wait, namespaces take turns, and in a namespace its jobs do. A namespace that had fewer turns lately than others is next until
    it has made up for some of them: a job that starts needs dozens, one after another, and would wait for as many of each other namespace.
    (Start-time fair queueing, of Goyal, Vin and Cheng, 1996, with credit.)
    """

    def __init__(self, at_once: int, of_one: int) -> None:
        self._free, self._of_one = at_once, of_one
        self._held: Counter[Key] = Counter()
        self._waiting: dict[str, dict[str, deque[_Waiting]]] = {}
        """By namespace and job, where several begin at the same time in the order of their next turns."""
        self._now = 0.0
        """Turns that each of those has had who always wait."""
        self._had: dict[str, float] = {}
        """By namespace, the same and what it could not make up for; of one that is not here :data:`CREDIT` less than now."""

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """A turn of the job that the task works for."""
        key = JOB.get()
        await self._take(key)
        try:
            yield
        finally:
            self._give_back(key)

    async def _take(self, key: Key, turns: int = 1) -> None:
        granted = asyncio.get_running_loop().create_future()
        waiting = _Waiting(granted, turns)
        self._waiting.setdefault(key[0], {}).setdefault(key[1], deque()).append(waiting)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give_back(key, turns)
            else:
                self._forget(key, waiting)
            raise

    def _give_back(self, key: Key, turns: int = 1) -> None:
        self._free += turns
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        self._grant()

    def _grant(self) -> None:
        if not self._waiting:
            self._now, self._had = 0.0, {}
        while (key := self._next()) is not None:
            if self._waiting[key[0]][key[1]][0].turns > self._free:
                return  # nobody who needs fewer passes it: it would wait for ever
            queue = self._waiting[key[0]].pop(key[1])
            first = queue.popleft()
            # To the end, for the next turn is that of others.
            jobs = self._waiting.pop(key[0])
            if queue:
                jobs[key[1]] = queue
            if jobs:
                self._waiting[key[0]] = jobs
            if not first.granted.done():
                had = self._had_by(key[0])
                self._now, self._had[key[0]] = max(self._now, had), had + first.turns
                self._free -= first.turns
                self._held[key] += 1
                first.granted.set_result(None)

    def _next(self) -> Key | None:
        """Who waits and may have one more; only those are passed by that have all that one may have, of which there are few."""
        found, first = None, math.inf
        for namespace, jobs in self._waiting.items():
            had = self._had_by(namespace)
            if had < first and (name := self._free_job(namespace, jobs)) is not None:
                found, first = (namespace, name), had
        return found

    def _had_by(self, namespace: str) -> float:
        least = self._now - CREDIT
        return max(least, self._had.get(namespace, least))

    def _free_job(self, namespace: str, jobs: Iterable[str]) -> str | None:
        return next((name for name in jobs if self._held[namespace, name] < self._of_one), None)

    def _forget(self, key: Key, waiting: "_Waiting") -> None:
        jobs = self._waiting.get(key[0], {})
        queue = jobs.get(key[1], deque())
        if waiting in queue:
            queue.remove(waiting)
        if not queue:
            jobs.pop(key[1], None)
        if not jobs:
            self._waiting.pop(key[0], None)
