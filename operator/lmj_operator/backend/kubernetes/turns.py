"""Turns at what all jobs share: whoever wants many waits behind whoever wants one."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

Key = tuple[str, str]
"""Namespace and name of a job."""
NOBODY: Key = ("", "")
JOB: ContextVar[Key] = ContextVar("JOB", default=NOBODY)
"""For which job a task works; the operator itself where it works for none."""


class Turns:
    """``at_once`` turns at the same time, of which one job has ``of_one`` at most.

    Where several wait, namespaces take turns, and in a namespace its jobs do.
    """

    def __init__(self, at_once: int, of_one: int) -> None:
        self._free, self._of_one = at_once, of_one
        self._held: Counter[Key] = Counter()
        self._waiting: dict[str, dict[str, deque[asyncio.Future[None]]]] = {}
        """In the order in which they come to their next turns."""

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """A turn of the job that the task works for."""
        key = JOB.get()
        await self._take(key)
        try:
            yield
        finally:
            self._give_back(key)

    async def slice(self, key: Key | None = None) -> None:
        """A turn from here to the end of this round of the loop, which others may not have in it: for what a job computes until it waits again.

        A round has all that became ready in the one before, which may be something of a thousand jobs. ``key``: the job; else the one that
        the task works for.
        """
        key = JOB.get() if key is None else key
        await self._take(key)
        asyncio.get_running_loop().call_soon(self._give_back, key)

    async def _take(self, key: Key) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key[0], {}).setdefault(key[1], deque()).append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(key)
            else:
                self._forget(key, turn)
            raise

    def _give_back(self, key: Key) -> None:
        self._free += 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        self._grant()

    def _grant(self) -> None:
        while self._free and (key := self._next()) is not None:
            queue = self._waiting[key[0]].pop(key[1])
            turn = queue.popleft()
            # To the end, for the next turn is that of others.
            jobs = self._waiting.pop(key[0])
            if queue:
                jobs[key[1]] = queue
            if jobs:
                self._waiting[key[0]] = jobs
            if not turn.done():
                self._free -= 1
                self._held[key] += 1
                turn.set_result(None)

    def _next(self) -> Key | None:
        """Who waits and may have one more; only those are passed by that have all that one may have, of which there are few."""
        for namespace, jobs in self._waiting.items():
            for name in jobs:
                if self._held[namespace, name] < self._of_one:
                    return namespace, name
        return None

    def _forget(self, key: Key, turn: asyncio.Future[None]) -> None:
        jobs = self._waiting.get(key[0], {})
        queue = jobs.get(key[1], deque())
        if turn in queue:
            queue.remove(turn)
        if not queue:
            jobs.pop(key[1], None)
        if not jobs:
            self._waiting.pop(key[0], None)
