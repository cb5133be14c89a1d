"""``lmj scale``: changes the number of replicas, or of stages, of a job that trains, on this machine or on a cluster."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmj_operator.cli.options import Output, OutputOption, SetOption

if TYPE_CHECKING:
    from lmj_api.status import JobStatus
    from lmj_operator.cli.training import Training


def scale(
    target: Annotated[
        Path, typer.Argument(help="The job's file, or its output folder; with -n its name.", metavar="FILE|DIR|JOB")
    ] = Path(),
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            min=1,
            help="How many copies of the pipeline are to train; at most dataParallel.maxReplicas.",
            show_default="as many as now",
        ),
    ] = None,
    stages: Annotated[
        int | None,
        typer.Option("--stages", min=1, help="Into how many stages the layers are to be cut.", show_default="as many as now"),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="The job is on the cluster that kubectl speaks to, in this namespace.")
    ] = None,
    seconds: Annotated[float, typer.Option("--timeout", min=0, help="Wait for so many seconds at most; 0: do not wait.")] = 600.0,
    sets: SetOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Have another number of replicas train, or of stages in each, while training goes on, and wait until they do. The result is the same to
    the bit.

    On a cluster (JOB, with -n NAMESPACE) it changes spec.dataParallel.replicas and spec.pipeline.stages.
    """
    from lmj_operator.cli.errors import CommandError
    from lmj_operator.cli.place import layout_of
    from lmj_operator.cli.training import ClusterTraining, LocalTraining, Training

    if replicas is None and stages is None:
        raise CommandError("give --replicas, --stages, or both")
    job: Training = (
        ClusterTraining(str(target), namespace)
        if namespace is not None
        else LocalTraining(layout_of(target, list(sets or ())).run)
    )
    before = job.status()
    job.scale(replicas, stages)
    if seconds > 0:
        _wait(job, replicas, stages, seconds)
    asked = [f"{count} {what}" for count, what in ((replicas, "replicas"), (stages, "stages")) if count is not None]
    if output is Output.JSON:
        # As before there were stages: that of the replicas.
        told = {"before": before.replicas, "replicas": replicas, "stagesBefore": before.stages, "stages": stages}
        typer.echo(json.dumps({name: value for name, value in told.items() if value is not None}))
    else:
        typer.echo(f"{' of '.join(asked)} train" if seconds > 0 else f"asked for {' of '.join(asked)}")


def _wait(job: "Training", replicas: int | None, stages: int | None, seconds: float) -> None:
    """Until so many train. Raises CommandError when that does not come."""
    from lmj_operator.cli.errors import FAILED, CommandError

    limit = time.monotonic() + seconds
    while True:
        status = job.status()
        if status.replicas == (replicas or status.replicas) and status.stages == (stages or status.stages):
            return
        if not job.runs():
            raise CommandError(f"the run ended before {_asked(replicas, stages)} trained", code=FAILED)
        if stages is not None and (given_up := _given_up(status, stages)) is not None:
            raise CommandError(f"the layers stay in {status.cut}: {given_up}", code=FAILED)
        if time.monotonic() > limit:
            message = f"{status.replicas} replicas of {status.stages} stages train after {seconds:g} s: {status.message}"
            raise CommandError(message, code=FAILED)
        time.sleep(job.poll_seconds)


def _asked(replicas: int | None, stages: int | None) -> str:
    return " of ".join(f"{count} {what}" for count, what in ((replicas, "replicas"), (stages, "stages")) if count is not None)


def _given_up(status: "JobStatus", stages: int) -> str | None:
    """Why the layers are not cut into so many."""
    recut = status.recut
    return recut.given_up if recut is not None and recut.cut.stages == stages else None
