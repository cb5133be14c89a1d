"""``lmj migrate``: moves ranks of a job that trains, on this machine or on a cluster."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmj_operator.cli.options import Output, OutputOption, SetOption

if TYPE_CHECKING:
    from lmj_api.status import JobStatus
    from lmj_operator.cli.training import Training

    Show = Callable[[JobStatus, JobStatus], None]

_LONGEST_SECONDS = 3600.0
"""The job gives a move up by itself; this is for a run that does not look any more."""


def migrate(
    target: Annotated[
        Path, typer.Argument(help="The job's file, or its output folder; with -n its name.", metavar="FILE|DIR|JOB")
    ] = Path(),
    rank: Annotated[list[int] | None, typer.Option("--rank", help="A rank to move; may be given again. Without it: all.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="NODE", help="The node to move to, on a cluster.")] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="The job is on the cluster that kubectl speaks to, in this namespace.")
    ] = None,
    sets: SetOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Move ranks of a running job into other pods while training goes on, and wait until they have.

    On this machine (FILE, or the output folder DIR) a pod is a process. On a cluster (JOB, with -n NAMESPACE) the same is asked by
    kubectl annotate lmj JOB "lmj.dev/migrate=0,1 to=NODE $(date +%s)" --overwrite, where to=NODE may be left out.
    """
    from lmj_operator.cli.errors import CommandError
    from lmj_operator.cli.move_progress import MoveProgress
    from lmj_operator.cli.moving import ranks_to_move
    from lmj_operator.cli.place import layout_of
    from lmj_operator.cli.training import ClusterTraining, LocalTraining, Training, move_request

    job: Training
    if namespace is not None:
        job = ClusterTraining(str(target), namespace)
    elif to is not None:
        raise CommandError(f"--to {to}: a job on this machine has no other node; say -n NAMESPACE for one on a cluster")
    else:
        job = LocalTraining(layout_of(target, list(sets or ())).run)
    before = job.status()
    ranks = ranks_to_move(before, rank)
    asked = move_request(ranks, to)
    job.ask(asked)
    if output is Output.TEXT:
        with MoveProgress(ranks) as progress:
            _wait(job, before, asked, ranks, progress.show)
    else:
        after = _wait(job, before, asked, ranks, lambda seen, now: None)
        moved = [i.model_dump(mode="json", by_alias=True) for i in after.incidents if i not in before.incidents]
        typer.echo(json.dumps({"migrations": after.migrations - before.migrations, "incidents": moved}, ensure_ascii=False))


def _wait(job: "Training", before: "JobStatus", asked: str, ranks: list[int], show: "Show") -> "JobStatus":
    """The status once all of ``ranks`` have moved, and trained on. Raises CommandError when one does not."""
    from lmj_operator.cli.errors import FAILED, CommandError
    from lmj_operator.cli.moving import has_moved

    limit = time.monotonic() + _LONGEST_SECONDS
    seen = before
    while True:
        now = job.status()
        show(seen, now)
        seen = now
        if has_moved(before, now, asked, ranks, job.runs):
            return now
        if time.monotonic() > limit:
            raise CommandError("nothing came of it within an hour: is the run stopped?", code=FAILED)
        time.sleep(job.poll_seconds)
