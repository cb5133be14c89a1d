"""A pass over a job that an error ended: what the job's status says of it, until a pass goes through."""

import re

from lmj_api.status import JobStatus
from lmj_operator.backend.kubernetes.api import ApiError
from lmj_operator.plan.report.conditions import RECONCILE_FAILED, with_condition

_WORD = re.compile(r"[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?")
_LONGEST = 300


def with_error(status: JobStatus, error: Exception, generation: int | None, now: float) -> JobStatus:
    """``status`` with a condition that says what ended the pass."""
    name = error.reason if isinstance(error, ApiError) else type(error).__name__
    what = str(error) if isinstance(error, ApiError) else f"{type(error).__name__}: {error}"
    text = f"the operator could not look after the job, and tries again: {' '.join(what.split())[:_LONGEST]}"
    reason = name if _WORD.fullmatch(name) else "Error"
    return with_condition(status, RECONCILE_FAILED, True, reason, text, generation, now)


def without_error(status: JobStatus, generation: int | None, now: float) -> JobStatus:
    """``status`` after a pass that went through; the same, where none had failed."""
    if not any(c.type == RECONCILE_FAILED and c.status == "True" for c in status.conditions):
        return status
    return with_condition(
        status, RECONCILE_FAILED, False, "Reconciled", "the operator looks after the job again", generation, now
    )
