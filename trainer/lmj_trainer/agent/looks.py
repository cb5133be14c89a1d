"""When the agent looks through the checkpoint folder, and what it makes of what it hears meanwhile."""

import asyncio
from collections.abc import Sequence

from lmj_api.fold import with_scan
from lmj_api.protocol import AgentState, CheckpointInfo, Event


class Looks:
    """One look when the agent starts, and one whenever it is told that a view is over. Lives in one event loop."""

    def __init__(self) -> None:
        self._number = 0
        self._names: tuple[str, ...] = ()
        self._asked = asyncio.Event()
        self._under_way = True  # the first begins with the agent
        self._told: set[str] = set()
        self._removed: set[str] = set()

    def ask(self, number: int, names: Sequence[str] = ()) -> None:
        """Have a look begin, now that view ``number`` is over. ``names``: checkpoints to look for where they are not listed."""
        if number > self._number:
            self._number, self._names = number, tuple(names)
            self._asked.set()

    async def next(self) -> tuple[int, tuple[str, ...]]:
        """Wait until another look is asked for; ``(number, names)``. It begins now."""
        await self._asked.wait()
        self._asked.clear()
        self._told.clear()
        self._removed.clear()
        self._under_way = True
        return self._number, self._names

    def hear(self, event: Event) -> None:
        """A worker told this: what a look under way has seen may be older."""
        if not self._under_way:
            return
        if event.checkpoint is not None:
            self._told.add(event.checkpoint.name)
        self._removed.update(event.removed)

    def done(self, state: AgentState, found: Sequence[CheckpointInfo], number: int) -> AgentState:
        """``state`` with what the look after view ``number`` has ``found``."""
        self._under_way = False
        return with_scan(state, found, self._told - self._removed, self._removed, number)
