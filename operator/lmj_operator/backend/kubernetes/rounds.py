"""Rounds of the loop, of which each has one thing at most that takes it for long."""

import asyncio
from weakref import WeakKeyDictionary

from lmj_operator.backend.kubernetes.turns import NOBODY, Turns

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


async def alone() -> None:
    """From here to the end of this round nobody else does who waits for this: a dozen watches may bring something large at the same time."""
    await _turns.setdefault(asyncio.get_running_loop(), Turns(1, 1)).slice(NOBODY)
