"""Has workers born, and keeps a warm parent for the next one: forked from it, a worker needs no cold start."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from lmj_trainer.agent.birth import BirthError, Handles, Program, start_cold
from lmj_trainer.agent.children import Children
from lmj_trainer.agent.warm import WarmParent

RESTARTS = 3
RESTART_WINDOW_SECONDS = 600.0
"""A warm parent that ends is followed by another, ``RESTARTS`` times within so long: one that cannot live costs no more than that."""


class Births:
    """Lives in the event loop, in the main thread."""

    def __init__(self, program: Program, children: Children, patience: float) -> None:
        """``patience``: seconds that a birth waits for a warm parent that is still importing; then the worker is started cold."""
        self.children = children
        self._program = program
        self._patience = patience
        self._warm: WarmParent | None = None
        self._keeping: asyncio.Task[None] | None = None

    def keep_warm(self, warn: Callable[[str], None]) -> None:
        """Start a warm parent, and another when it ends; ``warn`` is told when one did. Only where orphans are adopted."""
        if self._program.warm is None or not self.children.adopts or self._keeping is not None:
            return
        self._warm = self._start(warn)
        if self._warm is not None:
            self._keeping = asyncio.create_task(self._keep(self._warm, warn))

    @property
    def importing(self) -> bool:
        """The next worker will be born when its warm parent has imported everything."""
        return self._warm is not None and self._warm.importing

    @property
    def warm_bytes(self) -> int | None:
        """Memory of the warm parent; None: there is none."""
        return self._warm.memory if self._warm is not None else None

    async def bear(self, incarnation: int, handles: Handles, warn: Callable[[str], None]) -> int:
        """Have worker ``incarnation`` born; its process id. Raises OSError; then, and when cancelled, there will be none."""
        if self._warm is not None:
            try:
                async with asyncio.timeout(self._patience):
                    return await self._warm.bear(self._program, incarnation, handles)
            except TimeoutError:
                warn(f"worker {incarnation} is started cold: its warm parent was not ready within {self._patience:g} s")
            except BirthError as error:
                warn(f"worker {incarnation} is started cold: {error}")
        return start_cold(self._program, incarnation, handles, self.children)

    async def close(self) -> None:
        """End the warm parent; workers live on. Idempotent."""
        if self._keeping is not None:
            await asyncio.sleep(0)  # one that never began would not end what it keeps
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None

    def _start(self, warn: Callable[[str], None]) -> WarmParent | None:
        try:
            return WarmParent.start(self._program, self.children)
        except OSError as error:
            warn(f"workers are started cold: a warm parent cannot be started: {error}")
            return None

    async def _keep(self, warm: WarmParent | None, warn: Callable[[str], None]) -> None:
        ends: list[float] = []
        while warm is not None:
            try:
                how = await warm.life()
            finally:
                self._warm = None
            ends.append(time.monotonic())
            if warm.problem is not None:
                warn(f"workers are started cold: a warm parent cannot serve: {warm.problem}")
                return
            if not may_restart(ends):
                warn(f"workers are started cold from now on: a warm parent ended {len(ends)} times, at last: {how}")
                return
            warn(f"the warm parent ended ({how}): another is started")
            self._warm = warm = self._start(warn)


def may_restart(ends: Sequence[float]) -> bool:
    """Whether another warm parent is to be started, ``ends`` being when those before ended, oldest first, in seconds."""
    return len(ends) <= RESTARTS or ends[-1] - ends[-1 - RESTARTS] > RESTART_WINDOW_SECONDS
