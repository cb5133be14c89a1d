"""The trainer's own commands, run as processes: it is never imported here."""

import asyncio
import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lmj_api.spec.job import LiveMigrationJob
from lmj_operator.cli.errors import BAD_INPUT, FAILED, CommandError


def require_trainer() -> None:
    """Raises CommandError when the trainer, or what it trains with, is not installed here."""
    for module in ("lmj_trainer", "torch"):
        if importlib.util.find_spec(module) is None:
            raise CommandError("the trainer is not installed here: pip install 'livemigrationjob[operator,trainer]'", code=FAILED)


def become(command: str, arguments: Sequence[str]) -> NoReturn:
    """Go on as ``python -m lmj_trainer COMMAND ARGUMENT...``. Raises CommandError when it is not installed."""
    require_trainer()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "lmj_trainer", command, *arguments])  # noqa: S606


def check_job(job: LiveMigrationJob) -> str:
    """Have the trainer look at the job's data and model, before anything is started; returns what it printed.

    Raises CommandError with its ``error:`` line, and exit code 2 when the job is at fault, 1 when the check is.
    """
    require_trainer()
    with tempfile.TemporaryDirectory(prefix="lmj-check-") as folder:
        file = Path(folder) / "job.json"
        file.write_text(job.to_json(), encoding="utf-8")
        code, out, err = asyncio.run(_run([sys.executable, "-m", "lmj_trainer", "check", "--job", str(file)]))
    if code == 0:
        return out.strip()
    lines = [line.removeprefix("error: ") for line in err.splitlines() if line.startswith("error: ")]
    if code == BAD_INPUT and lines:
        raise CommandError(*lines)
    last = next((line.strip() for line in reversed(err.splitlines()) if line.strip()), "no message")
    raise CommandError(f"the check of the job ended with exit code {code}: {last}", code=FAILED)


async def _run(command: Sequence[str]) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
