"""Whose results an output folder has."""

from pathlib import Path

from pydantic import ValidationError

from lmj_api.identity import Difference, differences
from lmj_api.layout import Layout
from lmj_api.spec.job import JobSpec, LiveMigrationJob

LARGEST_JOB = 4 << 20
"""Bytes; a cluster's API server takes no larger object."""

MOST_NAMED = 6
"""Differences that a message names."""


class ResultsError(Exception):
    """It cannot be told whose they are; the text says why and what to do."""


def trained_job(layout: Layout) -> LiveMigrationJob | None:
    """The job whose results are there; None: there are none, or nobody wrote down whose. Raises ResultsError, and OSError."""
    if not layout.has_results():
        return None
    # Before it was written by whoever trains there was the bookkeeping of local runs alone.
    for path in (layout.trained, layout.run / "job.json"):
        content = _read(path)
        if content is None:
            continue
        try:
            return LiveMigrationJob.model_validate_json(content, extra="ignore")
        except ValidationError as error:
            raise ResultsError(
                f"{path} is not a job, so nobody knows whose results are there: choose another output.path"
            ) from error
    return None


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
            content = file.read(LARGEST_JOB + 1)
    except FileNotFoundError:
        return None
    if len(content) > LARGEST_JOB:
        raise ResultsError(f"{path} has more than {LARGEST_JOB} bytes, so it is no job: choose another output.path")
    return content
