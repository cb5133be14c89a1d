"""Which relays may connect to this one: those whose keys the pod's own processes name, because the operator told them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable

LINGER_SECONDS = 60.0
"""Connections of one that is named no more go on for so long: a last word of a view that is over may be under way."""


class Admission:
    """Lives in one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: in seconds."""
        self._clock = clock
        self._named: dict[Hashable, frozenset[str]] = {}
        """By who names them."""
        self._left: dict[str, float] = {}
        """When one was named no more."""
        self._changed = asyncio.Event()

    def name(self, who: Hashable, keys: Collection[str]) -> None:
        """``who`` names ``keys``, and no others any more."""
        before = self._all
        if keys:
            self._named[who] = frozenset(keys)
        else:
            self._named.pop(who, None)
        now, named = self._clock(), self._all
        # Who left long ago has no connection any more.
        self._left = {key: at for key, at in self._left.items() if key not in named and now - at < 2 * LINGER_SECONDS}
        self._left.update(dict.fromkeys(before - named, now))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def may(self, key: str) -> bool:
        """Whether the relay with ``key`` may connect."""
        return any(key in named for named in self._named.values())

    def may_stay(self, key: str) -> bool:
        """Whether one that was let in may go on."""
        return self.may(key) or self._clock() - self._left.get(key, float("-inf")) < LINGER_SECONDS

    async def admitted(self, key: str, seconds: float, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Wait until it may connect: who is told of a view first connects first. False: it is not ``wanted`` any more, which is looked at with
        each change. Raises TimeoutError.
        """
        async with asyncio.timeout(seconds):
            while wanted():
                if self.may(key):
                    return True
                await self._changed.wait()
        return False

    @property
    def _all(self) -> frozenset[str]:
        return frozenset[str]().union(*self._named.values())
