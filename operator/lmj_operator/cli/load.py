"""From a file's name to a job that is ready to run here."""

import os
from collections.abc import Sequence
from pathlib import Path

import yaml

from lmj_api.load import SpecError, load_job
from lmj_api.spec.job import LiveMigrationJob
from lmj_operator.cli.errors import CommandError


def read_job(file: Path, sets: Sequence[str]) -> LiveMigrationJob:
    """The job in ``file`` with ``sets`` (``path=value``) applied. Raises CommandError with a line for each mistake."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{file}: not a text file (byte {error.start} is not UTF-8)") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CommandError(f"{file}: {_yaml_problem(error)}") from error
    try:
        return load_job(document, base=file.absolute().parent, cwd=Path.cwd(), sets=sets)
    except SpecError as error:
        raise CommandError(*(f"{file}: {line}" for line in str(error).splitlines())) from error


def _yaml_problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or 'not YAML'}"
    return "not YAML: " + " ".join(str(error).split())


def check_output(job: LiveMigrationJob) -> None:
    """The output folder is there and can be written, or can be made; nothing is made. Raises CommandError."""
    path = Path(job.spec.output.path)
    for folder in (path, *path.parents):
        try:
            there = folder.exists()
        except OSError as error:
            raise CommandError(f"spec.output.path {path}: {error.strerror}") from error
        if not there:
            continue
        if not folder.is_dir():
            raise CommandError(f"spec.output.path {path}: {folder} is a file, not a folder; choose another path")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CommandError(f"spec.output.path {path}: {folder} cannot be written; choose another path")
        return
