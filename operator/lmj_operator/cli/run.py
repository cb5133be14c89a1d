"""``lmj run``: train a job on this machine, in the foreground."""

from pathlib import Path
from typing import Annotated

import typer

from lmj_operator.cli.options import JobFile, Output, OutputOption, SetOption


def run(
    file: JobFile,
    sets: SetOption = None,
    output: OutputOption = Output.TEXT,
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, help="Copies of the model that share each step; the bits are the same.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, also on a terminal.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over. What is in the output folder is moved into a folder earlier-N there.")
    ] = False,
    goes_on: Annotated[
        bool,
        typer.Option("--continue", help="Go on from the newest checkpoint with more epochs or steps, or another learning rate."),
    ] = False,
) -> None:
    """Train the job in FILE on this machine: one process group a rank, no cluster needed.

    FILE may be a Python script with an lmj.Trainer too, which is run as by python.

    Ctrl-C takes a checkpoint and leaves; the same command resumes. Another Ctrl-C, at least a second later, leaves at once.
    SIGTERM takes a checkpoint and leaves too, however often it comes: timeout and service managers send it twice.
    An output folder with the results of a job with other values is refused.
    --continue goes on from its newest checkpoint when only epochs, maxSteps, learningRate, schedule and warm-up differ. Steps before stay
    as they are; the learning rate is that of the new schedule from there on, so the weights are not those of a run that had the new
    values from its beginning.
    Exit codes: 0 succeeded, 1 failed, 2 bad input, 130 interrupted.
    """
    from lmj_operator.cli.session import run_job, run_script

    sets = list(sets or ())
    if file.suffix == ".py":
        run_script(file, sets, output, plain=plain, replicas=replicas, fresh=fresh, goes_on=goes_on)
    if replicas is not None:
        sets.append(f"dataParallel.replicas={replicas}")
    raise typer.Exit(run_job(Path(file), sets, output, plain=plain, fresh=fresh, goes_on=goes_on))
