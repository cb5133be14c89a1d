"""``lmj scale``: changes the number of replicas, or of stages, of a job that trains, on this machine or on a cluster."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmj_operator.cli.options import Output, OutputOption, SetOption

if TYPE_CHECKING:
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
    from lmj_operator.cli.place import layout_of
    from lmj_operator.cli.scaling import asked_for
    from lmj_operator.cli.training import ClusterTraining, LocalTraining, Training

    asked = asked_for(replicas, stages)
    job: Training = (
        ClusterTraining(str(target), namespace)
        if namespace is not None
        else LocalTraining(layout_of(target, list(sets or ())).run)
    )
    before = job.status()
    job.scale(replicas, stages)
    if seconds > 0:
        _wait(job, replicas, stages, seconds)
    if output is Output.JSON:
        # As before there were stages: that of the replicas.
        told = {"before": before.replicas, "replicas": replicas, "stagesBefore": before.stages, "stages": stages}
        typer.echo(json.dumps({name: value for name, value in told.items() if value is not None}))
    else:
        typer.echo(f"{asked} train" if seconds > 0 else f"asked for {asked}")


def _wait(job: "Training", replicas: int | None, stages: int | None, seconds: float) -> None:
    """Until so many train. Raises CommandError when that does not come."""
    from lmj_operator.cli.scaling import has_scaled, late

    limit = time.monotonic() + seconds
    while True:
        status = job.status()
        if has_scaled(status, replicas, stages, job.runs):
            return
        if time.monotonic() > limit:
            raise late(status, seconds)
        time.sleep(job.poll_seconds)
