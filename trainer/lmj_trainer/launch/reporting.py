"""What tells the launcher of a script's progress, and what its processes have to know for it."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from lmj_api.protocol import Progress
from lmj_api.spec.command import Command
from lmj_trainer.launch.progress_file import ProgressFile
from lmj_trainer.launch.progress_server import ProgressServer

Told = Callable[[Progress], None]
Warn = Callable[[str], None]

_OF_THE_TRAINER = "KUBEFLOW_"
"""Variables by which the Trainer of transformers finds whom to report to."""


@asynccontextmanager
async def reporting(
    command: Command, given: Mapping[str, str], first_step: int, first: bool, told: Told, warn: Warn
) -> AsyncIterator[dict[str, str]]:
    """Listen meanwhile, and give what is heard to ``told``; yields the variables that the script's processes need for it.

    ``given``: their other variables. ``first_step``: where the script goes on, as far as is known. ``first``: the node of its rank 0.
    """
    async with AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(ProgressServer(told, first_step=first_step))
        except OSError as error:
            warn(f"nobody can listen to the script's progress: {error}")
            yield {}
            return
        if command.progress_file is not None:
            path = Path(command.working_dir or ".") / command.progress_file
            await stack.enter_async_context(ProgressFile(path, server.take_lines, warn))
        variables = server.environment(given)
        yield {name: value for name, value in variables.items() if first or not name.startswith(_OF_THE_TRAINER)}
