"""``lmj run``: from a file and options to an exit code."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from lmj_api.status import Phase
from lmj_operator.cli.errors import CommandError
from lmj_operator.cli.foreground import run_here
from lmj_operator.cli.load import read_job
from lmj_operator.cli.options import Output
from lmj_operator.cli.reporter import JsonReporter, PlainReporter, Reporter
from lmj_operator.cli.trainer import require_trainer


def run_job(file: Path, sets: Sequence[str], output: Output, *, plain: bool, fresh: bool = False, goes_on: bool = False) -> int:
    """Run the job in ``file`` to its end and return the exit code. Raises CommandError before anything is started, and when it fails."""
    job = read_job(file, sets)
    reporter = _reporter(output, plain)
    ended = asyncio.run(run_here(job, reporter, signals, named=str(file), fresh=fresh, goes_on=goes_on))
    if ended.status.phase is Phase.FAILED and not ended.at_once:
        raise CommandError(ended.status.message, code=ended.code)
    return ended.code


def run_script(
    file: Path, sets: Sequence[str], output: Output, *, plain: bool, replicas: int | None, fresh: bool, goes_on: bool
) -> NoReturn:
    """Go on as the process that runs the script ``file``, whose ``lmj.Trainer`` says what the job is. Raises CommandError."""
    for option, given in (("--set", bool(sets)), ("-o json", output is Output.JSON), ("--plain", plain)):
        if given:
            raise CommandError(
                f"{file}: {option} is for a job's file: a script says in its TrainingArguments how it trains and what is told"
            )
    if not file.is_file():
        raise CommandError(f"{file}: No such file or directory")
    require_trainer()
    options = ["--fresh"] * fresh + ["--continue"] * goes_on
    options += ["--replicas", str(replicas)] if replicas is not None else []
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "lmj", str(file), *options])  # noqa: S606


@contextmanager
def signals(heard: Callable[[int], None]) -> Iterator[None]:
    """Those that a person or a service manager sends this process: SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard, number)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _reporter(output: Output, plain: bool) -> Reporter:
    if output is Output.JSON:
        return JsonReporter()
    if plain or not sys.stdout.isatty():
        return PlainReporter()
    from lmj_operator.cli.terminal import TerminalReporter

    return TerminalReporter()
