"""What tells the launcher of a script's progress, and what its processes have to know for it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from lmj_api.protocol import Progress
from lmj_api.spec.command import Command

Told = Callable[[Progress], None]
Warn = Callable[[str], None]
Reporting = Callable[[Command, Told, Warn], AbstractAsyncContextManager[dict[str, str]]]
"""Listens while it is entered, and gives what it hears; the variables that the processes need for it."""


@asynccontextmanager
async def none(command: Command, told: Told, warn: Warn) -> AsyncIterator[dict[str, str]]:
    """Nobody reports."""
    yield {}
