"""``lmj report``: a run as one HTML file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmj_operator.cli.options import SetOption

if TYPE_CHECKING:
    from lmj_api.spec.job import LiveMigrationJob
    from lmj_operator.cli.report.run import Run


def report(
    target: Annotated[Path, typer.Argument(help="The job's file, or its output folder.", metavar="FILE|DIR")] = Path(),
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write; - for standard output.")] = Path(
        "report.html"
    ),
    status: Annotated[
        Path | None,
        typer.Option("--status", metavar="JSON", help="Of a job on a cluster: what kubectl get lmj NAME -o json printed."),
    ] = None,
    sets: SetOption = None,
) -> None:
    """Write one HTML file about the run of FILE, or in the output folder DIR: loss, accuracy, ranks, step times, incidents, moves.

    It loads nothing from elsewhere. Of a job on a cluster, DIR is the folder on its output volume.
    """
    import sys
    import time

    from lmj_operator.cli.errors import CommandError
    from lmj_operator.cli.report.page import page
    from lmj_operator.cli.report.text import plural

    run = read_run(target, status, list(sets or ()))
    html = page(run, time.time()).encode()
    if str(output) == "-":
        sys.stdout.buffer.write(html)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(html)
    except OSError as error:
        raise CommandError(f"{output}: {error.strerror}") from error
    incidents = len(run.status.incidents) if run.status is not None else 0
    what = "1 incident or move" if incidents == 1 else f"{incidents} incidents and moves"
    typer.echo(f"{output}: {plural(run.steps, 'step')}, {what}")


def read_run(target: Path, status_file: Path | None, sets: list[str]) -> "Run":
    """The run with the output folder ``target``, or of the job in that file. Raises CommandError."""
    from lmj_api.layout import Layout
    from lmj_operator.cli.errors import CommandError
    from lmj_operator.cli.load import read_job
    from lmj_operator.cli.report import sources
    from lmj_operator.cli.report.run import Run, merged
    from lmj_operator.cli.report.series import ordered

    asked = None if target.is_dir() else read_job(target, sets)
    folder = target if asked is None else Layout.of(asked.spec).output
    # The names of the files are the same in every layout; the folder may have been copied here from another machine.
    layout = Layout(folder, folder / "checkpoints")
    stored = sources.read_status(layout.run / "status.json") if status_file is None else None
    told, status = sources.read_object(status_file) if status_file is not None else (None, stored)
    job = sources.read_stored_job(layout.run / "job.json") or told or asked
    records, unread = sources.read_records(layout.metrics)
    if status is None and not records:
        raise CommandError(f"{folder}: no job has run here: there is neither {layout.metrics.name} nor .lmj/status.json")
    return Run(
        name=job.metadata.name if job is not None else folder.absolute().name,
        job=job,
        status=status,
        records=tuple(ordered(records)),
        evaluations=merged(sources.read_evaluations(layout.evaluation), status),
        checkpoints=tuple(sources.read_checkpoints(_checkpoint_folder(layout.checkpoints, job))),
        unread=unread,
    )


def _checkpoint_folder(usual: Path, job: "LiveMigrationJob | None") -> Path:
    """Where the checkpoints are: in the output folder, unless the job says another. Nothing of a bucket is read here."""
    from lmj_api.layout import Layout

    return usual if job is None or usual.is_dir() else Layout.of(job.spec).checkpoints
