"""Whose results the output folder has: another job's are not written over."""

import contextlib
import json
from collections.abc import Callable

from lmj_api.layout import Layout
from lmj_api.results import LARGEST_JOB, ResultsError, job_in, other_job, trained_job
from lmj_api.spec import JobSpec, LiveMigrationJob, Training
from lmj_trainer.beside import beside
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.durable import write_atomically
from lmj_trainer.errors import UserError
from lmj_trainer.worker.background import answered
from lmj_trainer.worker.results import Results

_SECONDS = 10.0
"""For which a view waits for storage to say whose the results are."""

Warn = Callable[[str], None]


def refuse_other(job: LiveMigrationJob, warn: Warn) -> None:
    """Raise UserError when the results of a job that this one cannot go on from are in its output folder.

    Storage that cannot be read now is no reason not to train, as it is none to stop.
    """
    layout = Layout.of(job.spec)
    place = layout.results or layout.output
    try:
        old = _trained_job(job.spec, layout)
    except ResultsError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        warn(f"whose results are in {place} cannot be told now: {error}")
        return
    if old is None or _continues(job.spec, old.spec):
        return
    # A finished one of which nothing but the end is to be another gets another end: its steps stay.
    if (wrong := other_job(place, old.spec, job.spec, finished=False)) is not None:
        raise UserError(wrong[0])


def _trained_job(spec: JobSpec, layout: Layout) -> LiveMigrationJob | None:
    """As :func:`trained_job`, wherever results lie. Raises as that, and UserError."""
    results = Results.of(spec)
    if results is None:
        return trained_job(layout)
    try:
        content = results.trained.get(0, LARGEST_JOB + 1)
    except FileNotFoundError:
        return None
    return job_in(content, results.trained) if results.any() else None


def _continues(new: JobSpec, old: JobSpec) -> bool:
    """Whether ``new`` says that it goes on from a state of ``old``, which may be one of a run that ``old`` itself went on from."""
    states = {state_digest(old), *(part.state_digest for part in old.training.continues)}
    return any(part.state_digest in states for part in new.training.continues)


class Claimant:
    """Rank 0's record of whose the results are, written again until it is on storage: a later run that goes on from them reads it."""

    def __init__(self, job: LiveMigrationJob, warn: Warn) -> None:
        self._job, self._warn, self._claimed = job, warn, False
        # Here, because all wait for a claim while a view begins.
        self._layout, self._content = Layout.of(job.spec), _content(job)

    def claim(self) -> None:
        """A view begins. Raises as :func:`claim`."""
        with contextlib.suppress(OSError):
            if self._layout.trained.read_bytes() == self._content:
                self._claimed = True
                return
        # In object storage a request may take a minute.
        try:
            self._claimed = answered(beside(lambda: claim(self._job, self._warn), "claim"), _SECONDS)
        except TimeoutError as error:
            self._warn(f"whose results are in {self._layout.results or self._layout.output} is written later: {error}")

    def ensure(self) -> None:
        """As :meth:`claim`, if that could not write. Any thread may."""
        if not self._claimed:
            self.claim()


def claim(job: LiveMigrationJob, warn: Warn) -> bool:
    """From now on the results are those of ``job``. False: that could not be written. Raises as :func:`refuse_other`; to be called before
    anything is written.
    """
    refuse_other(job, warn)
    layout, content = Layout.of(job.spec), _content(job)
    try:
        if (results := Results.of(job.spec)) is not None:
            results.trained.put([content])
        # Where results lie elsewhere too, it says that this was done.
        if not layout.trained.exists() or layout.trained.read_bytes() != content:
            layout.output.mkdir(parents=True, exist_ok=True)
            write_atomically(layout.trained, content)
    except OSError as error:
        warn(f"whose results are in {layout.results or layout.output} cannot be written: {error}")
        return False
    return True


def _content(job: LiveMigrationJob) -> bytes:
    # What a template holds is nobody's business here, and changes nothing of the results.
    kept = job.model_copy(update={"spec": job.spec.model_copy(update={"template": None}), "status": None})
    return (json.dumps(json.loads(kept.to_json()), indent=1) + "\n").encode()


def require_start(training: Training, step: int, steps: int) -> None:
    """Raise UserError when a job of ``steps`` steps cannot begin with the state after ``step``."""
    if step < training.begins:
        raise UserError(
            f"the run goes on from step {training.begins} of an earlier part (training.continues), whose checkpoint cannot be used any "
            "more: choose another output.path"
        )
    if step > steps:
        raise UserError(f"{step} steps are trained already, and the job has {steps}: raise training.epochs or training.maxSteps")
