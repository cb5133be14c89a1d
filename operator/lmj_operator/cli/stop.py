"""``lmj stop``: has a run on this machine take a checkpoint and leave."""

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from lmj_operator.cli.options import SetOption

POLL_SECONDS = 0.1


def stop(
    target: Annotated[Path, typer.Argument(help="The job's file, or its output folder.", metavar="FILE|DIR")] = Path(),
    seconds: Annotated[float, typer.Option("--timeout", min=0, help="Wait for so many seconds at most.")] = 300.0,
    sets: SetOption = None,
) -> None:
    """Have the job of FILE, or of the output folder DIR, take a checkpoint and leave, and wait until it has. lmj run goes on from there."""
    from lmj_operator.backend.local.lock import lock_holder
    from lmj_operator.backend.local.process import has_open
    from lmj_operator.backend.local.store import RunStore, StoreError
    from lmj_operator.cli.errors import FAILED, CommandError
    from lmj_operator.cli.place import layout_of

    layout = layout_of(target, list(sets or ()))
    store = RunStore(layout.run)
    process = lock_holder(store.lock_file)
    if process is None:
        raise CommandError(f"{layout.output}: no job runs here", code=FAILED)
    # Where the folder is shared, the number in the lock may be one of another machine or container, and here another's.
    if not has_open(process, store.lock_file):
        raise CommandError(
            f"{layout.output}: the run (process {process}) is not of this machine or user; stop it there", code=FAILED
        )
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has just left by itself
    except PermissionError as error:
        raise CommandError(f"process {process}: {error.strerror}", code=FAILED) from error
    limit = time.monotonic() + seconds
    while lock_holder(store.lock_file) == process:
        if time.monotonic() > limit:
            raise CommandError(
                f"process {process} was asked to leave and has not within {seconds:g} s: see lmj status", code=FAILED
            )
        time.sleep(POLL_SECONDS)
    try:
        status = store.read_status()
    except StoreError as error:
        raise CommandError(str(error), code=FAILED) from error
    typer.echo(f"{status.phase.value}: {status.message}" if status is not None else "stopped before it began")
