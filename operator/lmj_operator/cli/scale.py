"""``lmj scale``: changes the number of replicas of a job that trains, on this machine or on a cluster."""

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
        int,
        typer.Option("--replicas", min=1, help="How many copies of the pipeline are to train; at most dataParallel.maxReplicas."),
    ] = 1,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="The job is on the cluster that kubectl speaks to, in this namespace.")
    ] = None,
    seconds: Annotated[float, typer.Option("--timeout", min=0, help="Wait for so many seconds at most; 0: do not wait.")] = 600.0,
    sets: SetOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Have another number of replicas train, while training goes on, and wait until they do. The result is the same to the bit.

    On a cluster (JOB, with -n NAMESPACE) it is what kubectl scale lmj JOB --replicas=N does.
    """
    from lmj_operator.cli.place import layout_of
    from lmj_operator.cli.training import ClusterTraining, LocalTraining, Training

    job: Training = (
        ClusterTraining(str(target), namespace)
        if namespace is not None
        else LocalTraining(layout_of(target, list(sets or ())).run)
    )
    before = job.status().replicas
    job.scale(replicas)
    if seconds > 0:
        _wait(job, replicas, seconds)
    if output is Output.JSON:
        typer.echo(json.dumps({"before": before, "replicas": replicas}))
    else:
        typer.echo(f"{replicas} replicas train" if seconds > 0 else f"asked for {replicas} replicas")


def _wait(job: "Training", replicas: int, seconds: float) -> None:
    """Until so many train. Raises CommandError when that does not come."""
    from lmj_operator.cli.errors import FAILED, CommandError

    limit = time.monotonic() + seconds
    while True:
        status = job.status()
        if status.replicas == replicas:
            return
        if not job.runs():
            raise CommandError(f"the run ended before {replicas} replicas trained", code=FAILED)
        if time.monotonic() > limit:
            raise CommandError(f"{status.replicas} replicas train after {seconds:g} s: {status.message}", code=FAILED)
        time.sleep(job.poll_seconds)
