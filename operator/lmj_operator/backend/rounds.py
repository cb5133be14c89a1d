"""Rounds of the loop, which is shared by all that takes it for long: a round has all that became ready in the one before."""

import asyncio
from weakref import WeakKeyDictionary

from lmj_operator.backend.turns import Key, Turns

SLICES, LONG = 6, 4
"""Slices of a round, each for what takes two or three milliseconds, as a pass of a small job does; and how many of them has what takes three
times as long. Two are left for others, who would wait for many rounds of a job with a large template. With one slice alone in a round, a
thousand jobs that have news all the time make others wait for seconds."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


async def turn(key: Key | None = None, *, long: bool = False) -> None:
    """A slice of this round, from here to its end; ``long``: of what takes long, one in a round.

    ``key``: the job that it is for; else the one that the task works for.
    """
    turns = _turns.setdefault(asyncio.get_running_loop(), Turns(SLICES, 1))
    await turns.slice(key, LONG if long else 1)
