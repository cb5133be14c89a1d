"""``lmj explain``: what a field of a job means."""

from typing import Annotated

import typer


def _complete(incomplete: str) -> list[str]:
    from lmj_api.explain import paths

    return [path for path in paths() if path.startswith(incomplete.removeprefix("spec."))]


def explain(
    field: Annotated[
        str, typer.Argument(help="A field, such as training.threads; without it: all parts.", autocompletion=_complete)
    ] = "",
) -> None:
    """Tell what a field of a job is: its type, bounds, default and meaning, as in training.threads."""
    from lmj_api.explain import explain as lines_of
    from lmj_api.problems import SpecError
    from lmj_operator.cli.errors import CommandError

    try:
        lines = lines_of(field)
    except SpecError as error:
        raise CommandError(*error.lines) from error
    for line in lines:
        typer.echo(line)
