"""The trainer's own commands, run as processes: it is never imported here."""

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lmj_api.spec.job import LiveMigrationJob
from lmj_operator.cli.errors import BAD_INPUT, FAILED, CommandError

ERROR = "error: "
"""How the line of a user's error begins."""
WARNING = "warning: "
PYTHON = (sys.executable, "-P", "-m", "lmj_trainer")
"""-P: a file of the user's that is called csv.py is no module of ours, though the command stands beside it."""
MOST_LINES = 200
"""Lines of stderr that are kept."""


def require_trainer() -> None:
    """Raises CommandError when the trainer, or what it trains with, is not installed here."""
    for module in ("lmj_trainer", "torch"):
        if importlib.util.find_spec(module) is None:
            raise CommandError("the trainer is not installed here: pip install 'livemigrationjob[operator,trainer]'", code=FAILED)


def become(command: str, arguments: Sequence[str]) -> NoReturn:
    """Go on as ``python -m lmj_trainer COMMAND ARGUMENT...``. Raises CommandError when it is not installed."""
    require_trainer()
    sys.stdout.flush()
    os.execv(sys.executable, [*PYTHON, command, *arguments])  # noqa: S606


async def check_job(job: LiveMigrationJob, say: Callable[[str], None], *, forget: bool = False) -> str:
    """Have the trainer look at the job's data and model, or at its script, before anything is started; returns what it printed.

    ``say`` gets a line at once, because it takes seconds, and each that the check says meanwhile. ``forget``: leave nothing of what is fetched
    from object storage; else a run finds it. Raises CommandError with its ``error:`` line, and exit code 2 when the job is at fault, 1 when the
    check is.
    """
    return await _asked("check", {"--job": job}, say, *["--forget"] * forget)


async def continuation(job: LiveMigrationJob, old: LiveMigrationJob, say: Callable[[str], None]) -> dict[str, Any]:
    """Where ``job`` goes on from what ``old`` has trained in its folder, as the trainer says. Checks it, and raises, as :func:`check_job`."""
    told = await _asked("continue", {"--job": job, "--earlier": old}, say)
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    return found


async def _asked(command: str, jobs: Mapping[str, LiveMigrationJob], say: Callable[[str], None], *flags: str) -> str:
    """What the trainer's ``command`` about ``jobs``, by option, printed."""
    require_trainer()
    script = any(job.spec.strategy.stateless for job in jobs.values())
    say("checking the script" if script else "checking the data and the model")
    with tempfile.TemporaryDirectory(prefix="lmj-check-") as folder:
        arguments = list(flags)
        for option, job in jobs.items():
            file = Path(folder) / f"{option.strip('-')}.json"
            file.write_text(job.to_json(), encoding="utf-8")
            arguments += [option, str(file)]
        code, out, told = await _run([*PYTHON, command, *arguments], say)
    if code == 0:
        return out.strip()
    lines = [line.removeprefix(ERROR) for line in told if line.startswith(ERROR)]
    if code in (BAD_INPUT, FAILED) and lines:
        raise CommandError(*lines, code=code)
    last = next((line.strip() for line in reversed(told) if line.strip()), "no message")
    raise CommandError(f"the check of the job ended with exit code {code}: {last}", code=FAILED)


async def _run(command: Sequence[str], say: Callable[[str], None]) -> tuple[int, str, list[str]]:
    """The exit code, stdout, and the last lines of stderr; those that are no error are passed to ``say`` as they come."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        out, told, code = await asyncio.gather(process.stdout.read(), _lines(process.stderr, say), process.wait())
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return code, out.decode(errors="replace"), told


async def _lines(stream: asyncio.StreamReader, say: Callable[[str], None]) -> list[str]:
    lines: deque[str] = deque(maxlen=MOST_LINES)
    rest = b""
    while part := await stream.read(1 << 16):
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            text = line.decode(errors="replace").rstrip()
            lines.append(text)
            if text and not text.startswith((ERROR, " ", "Traceback")):
                say(text)
    return [*lines, rest.decode(errors="replace")]
