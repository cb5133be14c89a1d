"""What the status of an earlier command means to a new one."""

from lmj_api.status import Incident, IncidentKind, JobStatus, Phase
from lmj_operator.plan.observe.naming import Names
from lmj_operator.plan.observe.times import rfc3339


def adopt(status: JobStatus, job: str, now: float, *, goes_on: bool = False) -> JobStatus:
    """The status to go on from, at ``now``: suspended, because no process outlives its command; the plan wakes it with new pods.

    A new command is a person's decision, so it starts with a full restart budget; incidents, the view and the serials stay.
    A job that has succeeded is returned as it is, unless it ``goes_on``: it is to be trained for longer.
    """
    if status.phase is Phase.SUCCEEDED and not goes_on:
        return status
    incidents, restarts = list(status.incidents), status.restarts
    if status.phase not in (Phase.SUSPENDED, Phase.FAILED, Phase.SUCCEEDED) and status.view is not None:
        step = status.progress.step if status.progress is not None else 0
        pod = Names(job, status.promotions).of(0, status.serials.get("0", 1))
        message = "the command that ran the job was killed, and all pods with it"
        killed = Incident(
            time=rfc3339(now), kind=IncidentKind.POD_GONE, rank=0, pod=pod, message=message, view=status.view.number, step=step
        )
        incidents, restarts = [*incidents, killed][-10:], restarts + 1
    return status.model_copy(
        update={
            "phase": Phase.SUSPENDED,
            "phase_since": now,
            "ranks": [r.model_copy(update={"pod": None, "incarnation": 0, "state": "NoPod"}) for r in status.ranks],
            "standbys": [],
            "warm_standbys": 0,
            "restarts": restarts,
            "restarts_before": restarts,
            "restarts_without_progress": 0,
            "disruptions_without_progress": 0,
            "restart_step": 0,
            "not_before": None,
            "finished": None,
            "incidents": incidents,
        }
    )
