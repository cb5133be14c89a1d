"""What tells the launcher of a script's progress, and what its processes have to know for it."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from lmj_api.protocol import Progress
from lmj_api.spec.command import Command
from lmj_trainer.launch.progress_file import ProgressFile
from lmj_trainer.launch.progress_server import ProgressServer
from lmj_trainer.launch.resume import step_of

Told = Callable[[Progress], None]
Warn = Callable[[str], None]
Reporting = Callable[[Command, str | None, Mapping[str, str], Told, Warn], AbstractAsyncContextManager[dict[str, str]]]
"""Listens while it is entered, and gives what it hears; the variables that the processes need for it.

Of a command, the checkpoint that it resumes from, the variables of its processes, and whom to tell progress and warnings.
"""


@asynccontextmanager
async def listening(
    command: Command, resume: str | None, given: Mapping[str, str], told: Told, warn: Warn
) -> AsyncIterator[dict[str, str]]:
    """What the script posts, and the lines of its file."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ProgressServer(told, first_step=step_of(resume) if resume else 0))
        if command.progress_file is not None:
            await stack.enter_async_context(ProgressFile(Path(command.progress_file), server.take_lines, warn))
        yield server.environment(given)


@asynccontextmanager
async def none(
    command: Command, resume: str | None, given: Mapping[str, str], told: Told, warn: Warn
) -> AsyncIterator[dict[str, str]]:
    """Nobody reports."""
    yield {}
