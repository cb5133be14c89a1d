"""``lmj status``: what a job on this machine is doing."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lmj_operator.cli.options import Output, OutputOption, SetOption


def status(
    target: Annotated[Path, typer.Argument(help="The job's file, or its output folder.", metavar="FILE|DIR")] = Path(),
    sets: SetOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Tell what the job of FILE, or with the output folder DIR, is doing or has done on this machine."""
    from lmj_operator.backend.local.lock import lock_holder
    from lmj_operator.backend.local.store import RunStore, StoreError
    from lmj_operator.cli.errors import FAILED, CommandError
    from lmj_operator.cli.place import layout_of
    from lmj_operator.cli.table import status_lines
    from lmj_operator.plan.observe.times import rfc3339

    folder = layout_of(target, list(sets or ())).run
    store = RunStore(folder)
    try:
        stored = store.read_status()
    except StoreError as error:
        raise CommandError(str(error)) from error
    if stored is None:
        raise CommandError(f"{folder.parent}: no job has run here (lmj list DIR finds runs)", code=FAILED)
    holder = lock_holder(store.lock_file)
    if output is Output.JSON:
        told = stored.model_dump(mode="json", by_alias=True)
        value = {"running": holder is not None, "process": holder, "staleSince": store.stale_since, "status": told}
        typer.echo(json.dumps(value, ensure_ascii=False))
        return
    if holder is not None and store.stale_since is not None:
        typer.echo(
            f"as of {rfc3339(store.stale_since)}: {store.status_file} cannot be written since, make room; training goes on"
        )
    for line in status_lines(stored, holder):
        typer.echo(line)
