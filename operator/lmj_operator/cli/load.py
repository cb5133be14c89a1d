"""From a file's name to a job that is ready to run here."""

import os
from collections.abc import Sequence
from pathlib import Path

from lmj_api.load import SpecError, load_job
from lmj_api.spec.job import LiveMigrationJob
from lmj_operator.cli.errors import CommandError
from lmj_operator.cli.yaml_file import LARGEST, YamlProblem, parse


def read_job(file: Path, sets: Sequence[str]) -> LiveMigrationJob:
    """The job in ``file`` with ``sets`` (``path=value``) applied. Raises CommandError with a line for each mistake."""
    try:
        with file.open("rb") as opened:
            data = opened.read(LARGEST + 1)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from error
    try:
        return load_job(parse(data), base=file.absolute().parent, sets=sets)
    except YamlProblem as error:
        raise CommandError(f"{file}: {error}") from error
    except SpecError as error:
        raise CommandError(*(f"{file}: {line}" for line in str(error).splitlines())) from error


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
