"""``lmj convert``: a job of another operator as a LiveMigrationJob."""

from pathlib import Path
from typing import Annotated

import typer

_WIDTH = 120


def convert(
    file: Annotated[Path, typer.Argument(help="A YAML file with PyTorchJobs or TrainJobs.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write it there. Left out: to stdout.", show_default=False),
    ] = None,
) -> None:
    """Write the LiveMigrationJob that does what the PyTorchJob or TrainJob in FILE does.

    What was changed, and what has no equivalent, is said on stderr, a line each.
    """
    import yaml

    from lmj_operator.cli.errors import CommandError

    documents, lines = _converted(file)
    text = "---\n".join(
        yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True)
        for document in documents
    )
    if output is None:
        typer.echo(text, nl=False)
    else:
        try:
            if output.exists() and output.samefile(file):
                raise CommandError(f"{output}: that is the file that is converted; choose another name")
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{output}: {error.strerror}; choose another name") from error
    for line in lines:
        typer.echo(f"{file}: {line}", err=True)


def _converted(file: Path) -> tuple[list[dict[str, object]], list[str]]:
    """The jobs in ``file``, and what is to be said. Raises CommandError."""
    from lmj_operator.cli.errors import CommandError
    from lmj_operator.cli.yaml_file import LARGEST, YamlProblem, parse_all
    from lmj_operator.convert.job import convert as converted
    from lmj_operator.convert.job import is_convertible, kind_of_document
    from lmj_operator.convert.notes import ConvertError, one_line

    try:
        with file.open("rb") as opened:
            found = parse_all(opened.read(LARGEST + 1))
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from error
    except YamlProblem as error:
        raise CommandError(f"{file}: {error}") from error
    made: list[dict[str, object]] = []
    lines: list[str] = []
    for index, document in enumerate(found, 1):
        place = f"document {index}: " if len(found) > 1 else ""
        if len(found) > 1 and not is_convertible(document):
            kind = kind_of_document(document)
            lines.append(one_line(f"{place}{kind[1] if kind else 'what has no kind'}: no job that is converted: left out"))
            continue
        try:
            job = converted(document)
        except ConvertError as error:
            raise CommandError(f"{file}: {place}{one_line(str(error))}") from error
        made.append(job.document)
        lines += [f"{place}{line}" for line in job.notes]
    if not made:
        raise CommandError(f"{file}: no PyTorchJob (kubeflow.org/v1) and no TrainJob (trainer.kubeflow.org/v1alpha1) in it")
    if len(made) > 1:
        lines.append(f"{len(made)} jobs: kubectl apply takes them all; lmj run takes a file for each")
    return made, lines
