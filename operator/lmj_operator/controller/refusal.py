"""Specs that cannot be run: what the job's status says then."""

from lmj_api.status import JobStatus, Phase
from lmj_operator.plan.report.conditions import conditions


def refused(status: JobStatus, message: str, generation: int | None, now: float) -> JobStatus:
    """The status of a job whose spec cannot be run: failed, with no pod made and no restart spent."""
    phase = Phase.FAILED
    return status.model_copy(
        update={
            "phase": phase,
            "phase_since": now,
            "message": message,
            "observed_generation": generation,
            "conditions": conditions(status.conditions, phase, message, generation, now),
            "finished": now,
            "cleaned": True,
        }
    )


def with_problem(status: JobStatus, problem: str, now: float) -> JobStatus:
    """``status`` with a condition that says why the spec is not followed."""
    standing = conditions(
        status.conditions,
        status.phase,
        status.message,
        status.observed_generation,
        now,
        problem=problem,
        moves=status.moves,
        followers=status.followers,
    )
    return status.model_copy(update={"conditions": standing})


def corrected(status: JobStatus, generation: int | None) -> bool:
    """Whether a job was refused before any pod was made, and its spec was changed since: it gets another chance."""
    return status.phase is Phase.FAILED and status.started is None and (generation or 0) > (status.observed_generation or 0)
