"""From a file's name to a job that is ready to run here."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmj_api.layout import Layout
from lmj_api.load import SpecError, load_job, read_document
from lmj_api.overrides import override
from lmj_api.spec.job import LiveMigrationJob
from lmj_operator.cli.errors import CommandError
from lmj_operator.cli.yaml_file import LARGEST, YamlProblem, parse


def read_job(file: Path, sets: Sequence[str]) -> LiveMigrationJob:
    """The job in ``file`` with ``sets`` (``path=value``) applied. Raises CommandError with a line for each mistake."""
    with _complaining(file):
        return load_job(_parsed(file), base=file.absolute().parent, sets=sets)


def written_job(file: Path, sets: Sequence[str]) -> tuple[dict[Any, Any], LiveMigrationJob]:
    """What ``file`` holds with ``sets`` applied, and the job that this is, its paths as they are written. Raises as :func:`read_job`."""
    with _complaining(file):
        document = _parsed(file)
        job = read_document(document, sets)
        assert isinstance(document, Mapping)
        return override(document, sets), job


@contextmanager
def _complaining(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from error
    except YamlProblem as error:
        raise CommandError(f"{file}: {error}") from error
    except SpecError as error:
        raise CommandError(*(f"{file}: {line}" for line in str(error).splitlines())) from error


def _parsed(file: Path) -> object:
    with file.open("rb") as opened:
        return parse(opened.read(LARGEST + 1))


def check_output(job: LiveMigrationJob) -> None:
    """The output folder is there and can be written, or can be made; nothing is made. Raises CommandError."""
    layout = Layout.of(job.spec)
    path, field = layout.output, "output.path" if layout.results is None else "output.scratch"
    for folder in (path, *path.parents):
        try:
            there = folder.exists()
        except OSError as error:
            raise CommandError(f"spec.{field} {path}: {error.strerror}") from error
        if not there:
            continue
        if not folder.is_dir():
            raise CommandError(f"spec.{field} {path}: {folder} is a file, not a folder; choose another path")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CommandError(f"spec.{field} {path}: {folder} cannot be written; choose another path")
        return
