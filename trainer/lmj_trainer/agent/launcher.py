"""Starts workers, and keeps a fork server for the next one: forked from it, a worker needs no cold start."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from lmj_trainer.agent.children import Children
from lmj_trainer.agent.fork_server import ForkServer
from lmj_trainer.agent.launch import Handles, LaunchError, Program, start_cold

RESTARTS = 3
RESTART_WINDOW_SECONDS = 600.0
"""A fork server that ends is followed by another, ``RESTARTS`` times within so long: one that cannot live costs no more than that."""


class Launcher:
    """Lives in the event loop, in the main thread."""

    def __init__(self, program: Program, children: Children, patience: float) -> None:
        """``patience``: seconds that a start waits for a fork server that is still importing; then the worker is started cold."""
        self.children = children
        self._program = program
        self._patience = patience
        self._server: ForkServer | None = None
        self._keeping: asyncio.Task[None] | None = None

    def keep_server(self, warn: Callable[[str], None]) -> None:
        """Start a fork server, and another when it ends; ``warn`` is told when one did. Only where orphans are adopted."""
        if self._program.server is None or not self.children.adopts or self._keeping is not None:
            return
        self._server = self._start(warn)
        if self._server is not None:
            self._keeping = asyncio.create_task(self._keep(self._server, warn))

    @property
    def importing(self) -> bool:
        """The next worker will be started when its fork server has imported everything."""
        return self._server is not None and self._server.importing

    @property
    def server_bytes(self) -> int | None:
        """Memory of the fork server; None: there is none."""
        return self._server.memory if self._server is not None else None

    async def launch(self, incarnation: int, handles: Handles, warn: Callable[[str], None]) -> int:
        """Start worker ``incarnation``; its process id. Raises OSError; then, and when cancelled, there will be none."""
        if self._server is not None:
            try:
                async with asyncio.timeout(self._patience):
                    return await self._server.launch(self._program, incarnation, handles)
            except TimeoutError:
                warn(f"worker {incarnation} is started cold: its fork server was not ready within {self._patience:g} s")
            except LaunchError as error:
                warn(f"worker {incarnation} is started cold: {error}")
        return start_cold(self._program, incarnation, handles, self.children)

    async def close(self) -> None:
        """End the fork server; workers live on. Idempotent."""
        if self._keeping is not None:
            await asyncio.sleep(0)  # one that never began would not end what it keeps
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None

    def _start(self, warn: Callable[[str], None]) -> ForkServer | None:
        try:
            return ForkServer.start(self._program, self.children)
        except OSError as error:
            warn(f"workers are started cold: a fork server cannot be started: {error}")
            return None

    async def _keep(self, server: ForkServer | None, warn: Callable[[str], None]) -> None:
        ends: list[float] = []
        while server is not None:
            try:
                how = await server.life()
            finally:
                self._server = None
            ends.append(time.monotonic())
            if server.problem is not None:
                warn(f"workers are started cold: a fork server cannot serve: {server.problem}")
                return
            if not may_restart(ends):
                warn(f"workers are started cold from now on: a fork server ended {len(ends)} times, at last: {how}")
                return
            warn(f"the fork server ended ({how}): another is started")
            self._server = server = self._start(warn)


def may_restart(ends: Sequence[float]) -> bool:
    """Whether another fork server is to be started, ``ends`` being when those before ended, oldest first, in seconds."""
    return len(ends) <= RESTARTS or ends[-1] - ends[-1 - RESTARTS] > RESTART_WINDOW_SECONDS
