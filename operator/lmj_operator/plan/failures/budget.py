"""How often a job may be restarted, and how long each restart waits."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmj_api.spec.recovery import Recovery
from lmj_api.status import Incident, JobStatus, Phase
from lmj_operator.plan.failures.failures import Failure
from lmj_operator.plan.failures.incidents import OF_REPLICAS, is_open

STEADY_SECONDS = 60.0
"""A script that ran for so long has got on, whether it reports steps or not."""


@dataclass(frozen=True, slots=True)
class Charge:
    """The budget after a restart was charged to it."""

    allowed: bool
    """False: the budget is spent, the job must be given up."""
    restarts: int
    uncounted: int
    """Of these, those that use up nothing of it."""
    disruptions: int
    """Of those, the pods that the cluster took away."""
    without_progress: int
    disrupted: int
    """Times in a row without a new step that the cluster took pods away."""
    restart_step: int
    not_before: float
    """The restart waits until then, seconds since the epoch."""
    reason: str
    """One clause for people."""


STUCK_RESTARTS = 3
"""After more in a row without a new step a job is one that fails again and again."""
FREE_RESTARTS = 10
"""So many restarts in a row without a new step wait for as long as the job wants, be it not at all."""
LEAST_SECONDS = 1.0
LONGEST_LEAST_SECONDS = 300.0
"""The next waits at least the first, and each further one twice as long as the one before, up to the second, which is a kubelet's longest
too: each new pod takes the time of the API server, a scheduler and a kubelet from other jobs' pods."""


def backoff(recovery: Recovery, without_progress: int) -> float:
    """Seconds that the ``without_progress``-th restart in a row without a new step waits; the first does not.

    One operator has the jobs of many: who fails again and again waits in the end, whatever the spec says.
    """
    if without_progress <= 1:
        return 0.0
    # The exponent is bounded, for 2.0 ** 1024 is an error and not infinity.
    wanted = min(recovery.backoff_seconds * 2.0 ** min(without_progress - 2, 64), recovery.max_backoff_seconds)
    if without_progress <= FREE_RESTARTS:
        return wanted
    return max(wanted, min(LEAST_SECONDS * 2.0 ** min(without_progress - FREE_RESTARTS - 1, 64), LONGEST_LEAST_SECONDS))


def in_row(status: JobStatus, step: int) -> int:
    """Restarts in a row without a new step, at ``step`` committed steps: a new step ends the row, though only the next failure stores that."""
    return 0 if step > status.restart_step else status.restarts_without_progress


def is_stuck(status: JobStatus, now: float) -> bool:
    """Whether the job failed again and again and has not got on since, by a new step or, as a script may, by running for long."""
    step = status.progress.step if status.progress is not None else 0
    return not _is_steady(status, now) and in_row(status, step) > STUCK_RESTARTS


def _is_steady(status: JobStatus, now: float) -> bool:
    return status.phase is Phase.RUNNING and now - (status.phase_since or now) >= STEADY_SECONDS


def counted(failures: Sequence[Failure], incidents: Sequence[Incident]) -> int:
    """How many of ``failures`` are restarts of their own.

    A worker that was cut off by the death of a peer is not: that death was counted. Once for each rank before the next view runs, so
    that nothing restarts for ever.
    """
    ended = {incident.rank for incident in incidents if is_open(incident) and incident.kind not in OF_REPLICAS}
    causes = sum(not failure.cut_off for failure in failures)
    follow = sum(failure.cut_off and failure.rank not in ended for failure in failures)
    return len(failures) - follow if causes or ended else len(failures)


def charge(
    recovery: Recovery,
    status: JobStatus,
    step: int,
    failures: int,
    now: float,
    taken: Sequence[str] = (),
    *,
    scripts: bool = False,
) -> Charge:
    """Charge ``failures`` noticed together at ``now``, with ``step`` committed steps: each is a restart, all of them one wait.

    ``scripts``: of a script, which need not report steps: that it ran for :data:`STEADY_SECONDS` counts as a new one.

    ``taken``: why the cluster took pods away, of those of them that were: replacing these is counted, and not charged. None of them: those
    noticed follow from others that were charged before, and wait for what those wait.
    """
    own = failures - len(taken)
    restarts, uncounted = status.restarts + failures, status.restarts_before + len(taken)
    steady = scripts and _is_steady(status, now)
    fresh = step > status.restart_step or steady
    row = (0 if steady else in_row(status, step)) + (1 if own else 0)
    disrupted = (0 if fresh else status.disruptions_without_progress) + (1 if taken else 0)
    # A cluster that takes every pod away at once is given time too.
    waits = [backoff(recovery, times) for times, new in ((row, own), (disrupted, taken)) if new]
    wait = max(waits, default=max(0.0, (status.not_before or 0.0) - now))
    charged = restarts - uncounted
    allowed = charged <= recovery.max_restarts
    when = f"in {wait:.3g} s" if wait else "at once"
    if not allowed:
        where = f", the last {row} of them on step {step + 1}" if row > 1 else ""
        reason = f"recovery.maxRestarts {recovery.max_restarts} is used up{where}"
    elif own:
        reason = f"restart {charged} of {recovery.max_restarts} {when}"
    elif taken:
        reason = f"replaced {when}, and not counted as a restart: {taken[-1]}"
    else:
        reason = "not counted as a restart, because it follows from the failure before"
    return Charge(
        allowed=allowed,
        restarts=restarts,
        uncounted=uncounted,
        disruptions=status.disruptions + len(taken),
        without_progress=row,
        disrupted=disrupted,
        restart_step=max(status.restart_step, step),
        not_before=now + wait,
        reason=reason,
    )
