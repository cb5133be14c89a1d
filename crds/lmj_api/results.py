"""Whose results an output folder has."""

from pathlib import Path

from pydantic import ValidationError

from lmj_api.identity import Difference, differences
from lmj_api.layout import Layout
from lmj_api.names import parse_checkpoint_name
from lmj_api.spec.job import JobSpec, LiveMigrationJob
from lmj_api.spec.training import Training

LARGEST_JOB = 4 << 20
"""Bytes; a cluster's API server takes no larger object."""

MOST_NAMED = 6
"""Differences that a message names."""


class ResultsError(Exception):
    """It cannot be told whose they are; the text says why and what to do."""


def trained_job(layout: Layout) -> LiveMigrationJob | None:
    """The job whose results are there; None: there are none, or nobody wrote down whose. Raises ResultsError, and OSError.

    A local run that went on from that job, and has checkpoints of its own, is the one even where it could not write itself down: who goes
    on from the older record would take those for another job's.
    """
    local = layout.run / "job.json"
    if not layout.has_results():
        # Where a script has its results is its own business.
        return _of_a_script(local)
    trained = _job(layout.trained)
    # Before the rank that trains wrote it, there was the bookkeeping of local runs alone.
    if trained is None:
        return _job(local)
    try:
        later = _job(local)
    except ResultsError:  # nobody needs it
        return trained
    return later if later is not None and _went_on(layout, trained.spec.training, later.spec.training) else trained


def _of_a_script(path: Path) -> LiveMigrationJob | None:
    """The job in ``path``, if it is one of a script."""
    try:
        job = _job(path)
    except ResultsError:  # whoever trained has left nothing
        return None
    return job if job is not None and job.spec.strategy.stateless else None


def _job(path: Path) -> LiveMigrationJob | None:
    content = _read(path)
    return None if content is None else job_in(content, path)


def job_in(content: bytes, place: object) -> LiveMigrationJob:
    """The job that is written down in ``place`` with this ``content``. Raises ResultsError."""
    if len(content) > LARGEST_JOB:
        raise ResultsError(f"{place} has more than {LARGEST_JOB} bytes, so it is no job: choose another output.path")
    try:
        return LiveMigrationJob.model_validate_json(content, extra="ignore")
    except ValidationError as error:
        raise ResultsError(
            f"{place} is not a job, so nobody knows whose results are there: choose another output.path"
        ) from error


def _went_on(layout: Layout, old: Training, new: Training) -> bool:
    """Whether ``new`` is another part of the run after ``old``, with a checkpoint."""
    if not new.continues or new.continues == old.continues:
        return False
    *before, last = new.continues
    if before != old.continues[: len(before)] or last.step < old.begins:
        return False
    return any(_step(entry) > last.step for entry in layout.checkpoints.iterdir()) if layout.checkpoints.is_dir() else False


def _step(folder: Path) -> int:
    """The step of a checkpoint; 0: it is none."""
    try:
        step, _ = parse_checkpoint_name(folder.name)
    except ValueError:
        return 0
    return step if (folder / "manifest.json").exists() else 0


def other_job(output: object, old: JobSpec, new: JobSpec, *, finished: bool) -> tuple[str, tuple[Difference, ...]] | None:
    """What is wrong with training ``new`` into the folder of ``old``, with the remedy that is always there; None: nothing is."""
    found = differences(old, new, finished=finished)
    if not found:
        return None
    named = ", ".join(map(str, found[:MOST_NAMED])) + (f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else "")
    return f"{output} has the results of another job ({named}): choose another output.path", found


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_JOB + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
