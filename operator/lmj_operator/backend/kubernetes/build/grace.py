"""How long a pod that is told to end has: its agent, its worker, and what the worker runs."""

from math import ceil

from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes.settings import Settings

_LEAVE_SECONDS = 5
"""What is left of a pod's grace for the agent to end itself, once its worker had its time."""
_KILL_SECONDS = 5.0
"""A script's processes that did not end in time are gone within so long."""
_SHARES = 2
"""An agent lets its worker go on for half of its time, for another pod to take its place; a script saves in the other half."""


def grace_seconds(job: LiveMigrationJob, settings: Settings) -> int:
    """Of a pod of ``job``, unless its template says another time."""
    if (command := job.spec.command) is None:
        return settings.grace_seconds
    return max(settings.grace_seconds, ceil(_SHARES * (command.save_seconds + _KILL_SECONDS)) + _LEAVE_SECONDS)


def agent_seconds(job: LiveMigrationJob, settings: Settings) -> int:
    """The part of it that its agent gives the worker."""
    return max(1, grace_seconds(job, settings) - _LEAVE_SECONDS)
