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
    if not before.ranks:
        raise CommandError("the job has no ranks yet: ask again when it trains")
    ranks = sorted(set(rank)) if rank else [r.rank for r in before.ranks]
    wrong = [r for r in ranks if not 0 <= r < len(before.ranks)]
    if wrong:
        raise CommandError(f"the job has no rank {wrong[0]}: its ranks are 0 to {len(before.ranks) - 1}")
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
    from lmj_api.status import IncidentKind
    from lmj_operator.cli.errors import FAILED, CommandError

    limit = time.monotonic() + _LONGEST_SECONDS
    seen = before
    while True:
        now = job.status()
        show(seen, now)
        seen = now
        fresh = [i for i in now.incidents if i not in before.incidents and i.kind is IncidentKind.MOVED]
        if now.migrations >= before.migrations + len(ranks) and all(i.seconds is not None for i in fresh):
            return now
        if now.move_request == asked and now.move_refused is not None:
            raise CommandError(now.move_refused, code=FAILED)
        # One that goes on through a checkpoint moves yet.
        failed = next((m for m in now.moves if m.rank in ranks and m.given_up is not None and m.strategy == "Live"), None)
        if failed is not None and now.move_request == asked:
            raise CommandError(f"rank {failed.rank}: {failed.given_up}", code=FAILED)
        if not job.runs():
            raise CommandError("the run ended before all ranks had moved", code=FAILED)
        if time.monotonic() > limit:
            raise CommandError("nothing came of it within an hour: is the run stopped?", code=FAILED)
        time.sleep(job.poll_seconds)
