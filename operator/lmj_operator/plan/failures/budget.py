"""How often a job may be restarted, and how long each restart waits."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmj_api.spec.recovery import Recovery
from lmj_api.status import Incident, JobStatus
from lmj_operator.plan.failures.failures import Failure
from lmj_operator.plan.failures.incidents import OF_REPLICAS, is_open


@dataclass(frozen=True, slots=True)
class Charge:
    """The budget after a restart was charged to it."""

    allowed: bool
    """False: the budget is spent, the job must be given up."""
    restarts: int
    without_progress: int
    restart_step: int
    not_before: float
    """The restart waits until then, seconds since the epoch."""
    reason: str
    """One clause for people."""


def backoff(recovery: Recovery, without_progress: int) -> float:
    """Seconds that the ``without_progress``-th restart in a row without a new step waits; the first does not."""
    if without_progress <= 1 or recovery.backoff_seconds == 0:
        return 0.0
    # The exponent is bounded, for 2.0 ** 1024 is an error and not infinity.
    return min(recovery.backoff_seconds * 2.0 ** min(without_progress - 2, 64), recovery.max_backoff_seconds)


def in_row(status: JobStatus, step: int) -> int:
    """Restarts in a row without a new step, at ``step`` committed steps: a new step ends the row, though only the next failure stores that."""
    return 0 if step > status.restart_step else status.restarts_without_progress


def counted(failures: Sequence[Failure], incidents: Sequence[Incident]) -> int:
    """How many of ``failures`` are restarts of their own.

    A worker that was cut off by the death of a peer is not: that death was counted. Once for each rank before the next view runs, so
    that nothing restarts for ever.
    """
    ended = {incident.rank for incident in incidents if is_open(incident) and incident.kind not in OF_REPLICAS}
    causes = sum(not failure.cut_off for failure in failures)
    follow = sum(failure.cut_off and failure.rank not in ended for failure in failures)
    return len(failures) - follow if causes or ended else len(failures)


def charge(recovery: Recovery, status: JobStatus, step: int, failures: int, now: float) -> Charge:
    """Charge ``failures`` noticed together at ``now``, with ``step`` committed steps: each is a restart, all of them one wait.

    None of them: those noticed follow from others that were charged before, and wait for what those wait.
    """
    restarts = status.restarts + failures
    row = in_row(status, step) + (1 if failures else 0)
    wait = backoff(recovery, row) if failures else max(0.0, (status.not_before or 0.0) - now)
    charged = restarts - status.restarts_before
    allowed = charged <= recovery.max_restarts
    if not allowed:
        where = f", the last {row} of them on step {step + 1}" if row > 1 else ""
        reason = f"recovery.maxRestarts {recovery.max_restarts} is used up{where}"
    elif not failures:
        reason = "not counted as a restart, because it follows from the failure before"
    else:
        reason = f"restart {charged} of {recovery.max_restarts} {f'in {wait:.3g} s' if wait else 'at once'}"
    return Charge(
        allowed=allowed,
        restarts=restarts,
        without_progress=row,
        restart_step=max(status.restart_step, step),
        not_before=now + wait,
        reason=reason,
    )
