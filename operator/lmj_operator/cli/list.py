"""``lmj list``: the runs below a folder."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmj_operator.cli.options import Output, OutputOption

if TYPE_CHECKING:
    from lmj_api.status import JobStatus

LIVELY = frozenset({"Pending", "Running", "Recovering", "Suspending"})
"""Phases of a job that somebody runs."""
_DEEPEST = 6
_MOST = 1000
"""Runs that are listed."""
_INSIDE = frozenset(
    {"checkpoints", "model", "adapter", "cache", "logs", "tensorboard", "trackers", "node_modules", "__pycache__"}
)
"""Folders that hold no runs: those of a run, and large ones of others."""


def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where to look; the current folder by default.", metavar="DIR")] = Path(),
    output: OutputOption = Output.TEXT,
) -> None:
    """List the runs in and below the folder DIR: name, phase, step, and which process runs it."""
    from lmj_operator.cli.errors import CommandError

    if not folder.is_dir():
        raise CommandError(f"{folder}: there is no such folder")
    found: list[dict[str, object]] = []
    for place in runs(folder):
        if len(found) == _MOST:
            typer.echo(f"warning: more than {_MOST} runs: name a folder below {folder}", err=True)
            break
        found.append(_facts(place))
    if output is Output.JSON:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    if not found:
        typer.echo(f"no run in {folder.absolute()} or below it")
        return
    rows = [("JOB", "PHASE", "STEP", "PROCESS", "OUTPUT"), *(_row(facts) for facts in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        typer.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def runs(folder: Path) -> Iterator[Path]:
    """The output folders of runs in and below ``folder``, by their names. Hidden folders and links are not gone into."""
    for place, folders, _ in os.walk(folder, followlinks=False):
        depth = len(Path(place).relative_to(folder).parts)
        if ".lmj" in folders:
            yield Path(place)
        keep = depth < _DEEPEST
        folders[:] = sorted(name for name in folders if keep and not name.startswith(".") and name not in _INSIDE)


def _facts(place: Path) -> dict[str, object]:
    from lmj_api.layout import Layout
    from lmj_operator.backend.local.lock import lock_holder
    from lmj_operator.backend.local.store import RunStore, StoreError

    store = RunStore(Layout(place, place / "checkpoints").run)
    status: JobStatus | None = None
    problem = None
    process = None
    try:
        status = store.read_status()
        process = lock_holder(store.lock_file)
    except (StoreError, OSError) as error:
        problem = " ".join(str(error).split())
    at = status.progress if status is not None else None
    return {
        "name": store.job_name() or place.absolute().name,
        "phase": "Unreadable" if problem is not None else "New" if status is None else status.phase.value,
        "step": at.step if at is not None else None,
        "steps": at.steps if at is not None else None,
        "process": process,
        "output": str(place),
        "problem": problem,
    }


def _row(facts: dict[str, object]) -> tuple[str, ...]:
    from lmj_api.bounds import printable

    step = "-" if facts["step"] is None else f"{facts['step']}/{facts['steps']}"
    process = "-" if facts["process"] is None else str(facts["process"])
    # A run that was killed still says Running; nobody runs it.
    killed = facts["process"] is None and facts["phase"] in LIVELY
    cells = (
        str(facts["name"]),
        f"{facts['phase']} (killed)" if killed else str(facts["phase"]),
        step,
        process,
        str(facts["output"]),
    )
    return tuple(printable(cell) for cell in cells)
