"""The entry point of ``lmj``."""

import sys
from typing import Annotated

import typer

from lmj_operator.cli import convert, explain, logs, migrate, operator, run, scale, status, stop, tools, validate
from lmj_operator.cli import list as lists
from lmj_operator.cli.errors import FAILED, INTERRUPTED, CommandError
from lmj_operator.cli.report import command as report
from lmj_operator.cli.volume import download, shell, upload

app = typer.Typer(
    name="lmj",
    help="Train BERT-class models as pipelines that survive failures. One YAML file is one job.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run.run)
app.command()(validate.validate)
app.command()(explain.explain)
app.command()(convert.convert)
app.command("list")(lists.list_runs)
app.command()(status.status)
app.command()(logs.logs)
app.command()(stop.stop)
app.command()(migrate.migrate)
app.command()(scale.scale)
app.command()(report.report)
app.command()(upload.upload)
app.command()(download.download)
app.command()(shell.shell)
app.command()(operator.operator)
for tool in (tools.init, tools.evaluate, tools.predict, tools.checkpoints, tools.export, tools.track, tools.push):
    app.command(context_settings=dict(tools.PASS_ON), add_help_option=False)(tool)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"lmj {version('livemigrationjob')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command that the process's arguments name, and exit. A mistake is one line on stderr and exit code 2."""
    try:
        app()
    except CommandError as error:
        from lmj_api.bounds import printable

        for line in error.lines:
            sys.stderr.write(f"error: {printable(line)}\n")
        sys.exit(error.code)
    except PermissionError as error:  # a run is its owner's alone
        if error.filename is None:
            raise
        sys.stderr.write(f"error: {error.filename}: {error.strerror}\n")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
