"""What to do now, and what to remember of it."""

from dataclasses import dataclass

from lmj_api.status import JobStatus
from lmj_operator.plan.actions import Action

CHANGING_SECONDS = 0.5
"""Look again after so long while something is under way, even when nothing was heard."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: store ``status``, carry out ``actions``, look again after ``wake_after`` seconds or on news."""

    status: JobStatus
    reason: str
    actions: tuple[Action, ...] = ()
    wake_after: float | None = None
    """Seconds; None: nothing will change by itself."""
    due_after: float | None = None
    """Seconds until something is due that nobody will report. Where every change is told, nothing needs a look before."""
    urgent: bool = False
    """All ranks wait for what comes next: the news is looked at as it comes."""
