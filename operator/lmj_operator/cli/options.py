"""Options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """How results are told."""

    TEXT = "text"
    JSON = "json"


JobFile = Annotated[Path, typer.Argument(help="The job: a YAML file with a LiveMigrationJob.", show_default=False)]


def _complete(incomplete: str) -> list[str]:
    from lmj_api.explain import paths

    return [f"{path}=" for path in paths() if path.startswith(incomplete)]


SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set a field of the job, such as training.epochs=1. May be repeated.",
        autocompletion=_complete,
    ),
]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Tell it as text, or as JSON.")]
