"""Rounds of the loop, which is shared by all that takes it for long: a round has all that became ready in the one before."""

import asyncio
from time import thread_time
from weakref import WeakKeyDictionary

from lmj_operator.backend.turns import JOB, Key, Turns

SLICES, LONG = 6, 4
"""Slices of a round, each for what takes two or three milliseconds, as a pass of a small job does; and how many of them has what takes three
times as long. Two are left for others, who would wait for many rounds of a job with a large template. With one slice alone in a round, a
thousand jobs that have news all the time make others wait for seconds."""
ROUNDS = 4
"""Of the loop, for which a slice is held: in the second a question that came in the first is read, and in the fourth it is answered. So whoever
asks whether the operator lives waits for the slices of one round, not for those of two or three."""
SECONDS = 0.01
"""Of computing, after which a slice that has not begun waits for rounds that have none: those before it took longer than was thought."""


class Rounds(Turns):
    """Of one loop: turns that are slices of its rounds, ``at_once`` of each, of which one job has ``of_one`` at most."""

    def __init__(self, at_once: int, of_one: int) -> None:
        super().__init__(at_once, of_one)
        self._slices, self._begun = 0, 0.0
        """Slices that are held, and what the thread had computed when the first of them began."""
        self._none = asyncio.Event()
        """No slice is held."""

    async def slice(self, key: Key | None = None, turns: int = 1) -> None:
        """So many turns from here to the end of this round of the loop, which others may not have in it and those after it, :data:`ROUNDS` in
        all: for what a job computes until it waits again. ``key``: the job; else the one that the task works for.
        """
        key = JOB.get() if key is None else key
        await self._take(key, turns)
        try:
            while self._slices and thread_time() - self._begun > SECONDS:
                await self._none.wait()
        except asyncio.CancelledError:
            self._give_back(key, turns)
            raise
        if not self._slices:
            self._begun = thread_time()
            self._none.clear()
        self._slices += 1
        self._hold(ROUNDS, key, turns)

    def _hold(self, rounds: int, key: Key, turns: int) -> None:
        if rounds:
            asyncio.get_running_loop().call_soon(self._hold, rounds - 1, key, turns)
        else:
            self._slices -= 1
            if not self._slices:
                self._none.set()
            self._give_back(key, turns)


_rounds: WeakKeyDictionary[asyncio.AbstractEventLoop, Rounds] = WeakKeyDictionary()


async def turn(key: Key | None = None, *, long: bool = False) -> None:
    """A slice of this round, from here to its end; ``long``: of what takes long, one in a round.

    ``key``: the job that it is for; else the one that the task works for.
    """
    loop = asyncio.get_running_loop()
    if (rounds := _rounds.get(loop)) is None:
        rounds = _rounds[loop] = Rounds(SLICES, 1)
    await rounds.slice(key, LONG if long else 1)
