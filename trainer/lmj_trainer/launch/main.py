"""The launcher's process: ``python -m lmj_trainer launch``. Started by the agent, never by hand."""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from lmj_api.protocol import USER_ERROR, EventKind
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.errors import UserError
from lmj_trainer.launch.agent_line import AgentLine
from lmj_trainer.launch.door import Door, own_host
from lmj_trainer.launch.here import Here
from lmj_trainer.launch.launcher import Launcher
from lmj_trainer.launch.memory.place import DIR
from lmj_trainer.launch.memory.transfer import Fetcher
from lmj_trainer.launch.processes import Starter, StarterGoneError
from lmj_trainer.launch.processors import usable_cores
from lmj_trainer.launch.starter import fork_starter
from lmj_trainer.limits import allow_files

log = logging.getLogger("lmj.launch")

_OURS = ("LMJ_INTERFACE", "PYTHONSAFEPATH")
"""Variables that are for the launcher alone: a script may import what is beside it."""


def main(argv: list[str]) -> int:
    """Run one launcher; its exit code is that of the process."""
    arguments = parser().parse_args(argv)
    # Before all else: what it forks has one thread, and nothing that is begun here.
    line = fork_starter([arguments.fd])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        code = asyncio.run(_serve(arguments, line))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USER_ERROR
    except StarterGoneError as error:
        print(error, file=sys.stderr)
        code = 1
    except Exception:
        log.exception("the launcher of rank %s failed", arguments.rank)
        code = 1
    _leave(code)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(prog="lmj_trainer launch", description=__doc__)
    result.add_argument("--job", type=Path, required=True, help="the job, JSON, with absolute paths")
    result.add_argument("--rank", type=int, help="left out: there is nothing to prepare but what is imported")
    result.add_argument("--pod", required=True)
    result.add_argument("--incarnation", type=int, required=True)
    result.add_argument("--fd", type=int, required=True, help="socket to the agent")
    return result


def _leave(code: int) -> NoReturn:
    """End at once. The starter ends by that, and what is left of the script."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _serve(arguments: argparse.Namespace, line: socket.socket) -> int:
    changed = asyncio.Event()
    agent = await AgentLine.connect(arguments.fd, changed)
    try:
        if arguments.rank is None:
            agent.emit(EventKind.PREPARING, "everything is imported")
            return 0
        job = LiveMigrationJob.model_validate_json(arguments.job.read_bytes(), extra="ignore")
        _check(job)
        allow_files()
        variables = dict(os.environ)
        memory = _memory(job, variables)
        starter, door = await Starter.connect(line, changed), Door(memory)
        _explain_when_asked(starter)
        address = await door.open(own_host(variables))
        own = {name: value for name, value in variables.items() if name not in _OURS}
        fetcher = None if memory is None else Fetcher(memory)
        here = Here(job, arguments.rank, agent, starter, changed, own, usable_cores(), fetcher)
        try:
            return await Launcher(here, door).serve(address)
        finally:
            door.close()
    finally:
        await agent.flush()


def _check(job: LiveMigrationJob) -> None:
    """Raise UserError for what the script's processes would only say each on its own."""
    command = job.spec.command
    if command is None:
        raise UserError("spec.command is missing: a launcher runs the script in it")
    if command.working_dir is not None and not Path(command.working_dir).is_dir():
        raise UserError(f"spec.command.workingDir: there is no folder {command.working_dir} in this pod")


def _memory(job: LiveMigrationJob, variables: Mapping[str, str]) -> Path | None:
    """The folder for snapshots, which is the agent's; None: there are to be none."""
    folder = variables.get(DIR)
    return None if folder is None or job.spec.command is None or job.spec.command.memory is None else Path(folder)


def _explain_when_asked(starter: Starter) -> None:
    """Pass the agent's question on, where a process stands that it takes for hanging: those that can answer do, and all are killed next."""

    def ask() -> None:
        for number in starter.pids:
            starter.signal(number, signal.SIGUSR1)

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, ask)
