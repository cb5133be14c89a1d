"""What an output folder has from before, and what that means to a job that is to train into it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from lmj_api.layout import Layout
from lmj_api.results import ResultsError, other_job, trained_job
from lmj_api.spec.job import LiveMigrationJob
from lmj_api.spec.training import Continued
from lmj_operator.backend.local.aside import is_unfinished
from lmj_operator.cli.errors import CommandError
from lmj_operator.cli.trainer import check_job, continuation


class Wish(StrEnum):
    """What is to be done with it."""

    RESUME = "resume"
    """Go on, if it is of the same job."""
    FRESH = "fresh"
    """Start over; what is there is moved aside."""
    CONTINUE = "continue"
    """Go on with other values, where that can be."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The job that was trained there so far."""

    job: LiveMigrationJob
    changes: str
    """What another job wants else, as ``FIELD OLD → NEW``; empty: nothing."""


def wish_of(layout: Layout, *, fresh: bool, goes_on: bool) -> Wish:
    """What the command's options say; a new beginning that was ended half-way is one still. Raises CommandError for both options."""
    if fresh and goes_on:
        raise CommandError("--fresh starts over and --continue goes on: give one of them")
    if fresh or is_unfinished(layout):
        if layout.bucket is not None:
            raise CommandError(f"--fresh moves nothing aside in {layout.bucket}: choose another checkpoint.path and output.path")
        return Wish.FRESH
    return Wish.CONTINUE if goes_on else Wish.RESUME


def earlier(job: LiveMigrationJob, layout: Layout, wish: Wish, *, finished: bool) -> Earlier | None:
    """What ``job`` goes on from in its output folder; None: nothing, it begins. Raises CommandError when it cannot.

    The parts that a run was continued in are no person's to write: a job without any has those of the run.
    """
    if wish is Wish.FRESH:
        return None
    try:
        old = trained_job(layout)
    except ResultsError as error:
        raise CommandError(f"{error}, or --fresh") from error
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    if old is None:
        return None
    found = other_job(layout.output, old.spec, with_parts_of(job, old).spec, finished=finished)
    if found is None:
        return Earlier(old, "")
    wrong, fields = found
    fixed = [str(field) for field in fields if not field.continuable]
    if wish is Wish.CONTINUE and not fixed:
        return Earlier(old, ", ".join(map(str, fields)))
    if wish is Wish.CONTINUE:
        raise CommandError(
            f"{layout.output} has the results of a job that --continue cannot go on from because of {', '.join(fixed)}: "
            "choose another output.path, or --fresh to start over"
        )
    goes_on = "" if fixed else ", --continue to train on from its newest checkpoint with the new values"
    raise CommandError(f"{wrong}{goes_on}, or --fresh to start over (what is there is moved aside)")


def with_parts_of(job: LiveMigrationJob, old: LiveMigrationJob) -> LiveMigrationJob:
    """``job`` as the run that ``old`` is, which may have been continued."""
    return job if job.spec.training.continues else _continuing(job, old.spec.training.continues)


async def continued(job: LiveMigrationJob, found: Earlier, say: Callable[[str], None]) -> tuple[LiveMigrationJob, str]:
    """``job`` as what goes on from ``found``, and what that means, for people. Checks the job. Raises CommandError when it cannot."""
    if job.spec.strategy.stateless:
        await check_job(job, say)
        return job, f"goes on ({found.changes}): the script is started again, and gets its newest checkpoint where it has some"
    said = await continuation(with_parts_of(job, found.job), found.job, say)
    parts = [Continued.model_validate(part) for part in said["continues"]]
    line = (
        f"goes on from step {said['step']} of {said['steps']} ({found.changes}): what was trained, recorded and evaluated up to there stays; "
        f"from there on the learning rate is the new schedule's, first {said['learningRate']:.3g}"
    )
    return _continuing(job, parts), line


def _continuing(job: LiveMigrationJob, parts: list[Continued]) -> LiveMigrationJob:
    training = job.spec.training.model_copy(update={"continues": parts})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})
