"""The record of what interrupted training, and what it cost."""

from lmj_api.status import Incident
from lmj_operator.plan.failures import Failure
from lmj_operator.plan.times import epoch_seconds, rfc3339

KEPT = 10


def record(incidents: list[Incident], failures: tuple[Failure, ...], view: int, step: int, now: float) -> list[Incident]:
    """``incidents`` with ``failures`` behind them; the last ten."""
    new = [
        Incident(time=rfc3339(now), kind=f.kind, rank=f.rank, pod=f.pod, message=f.message, view=view, step=step)
        for f in failures
    ]
    return [*incidents, *new][-KEPT:]


def settle(
    incidents: list[Incident], running_view: int, resume_step: int, step: int, done: bool, now: float
) -> tuple[list[Incident], int]:
    """Fill in what open incidents cost, now that ``running_view`` (0: none) runs from ``resume_step`` and is at ``step``.

    Returns the incidents and the steps newly counted as lost. Incidents of one outage share its cost: the first carries it.
    """
    settled: list[Incident] = []
    lost = 0
    for incident in incidents:
        if incident.steps_lost is None and (running_view > incident.view or done):
            cost = max(0, incident.step - resume_step - lost) if running_view > incident.view else 0
            lost += cost
            incident = incident.model_copy(update={"steps_lost": cost})
        if incident.seconds is None and incident.steps_lost is not None and (step > incident.step or done):
            incident = incident.model_copy(update={"seconds": round(max(0.0, now - epoch_seconds(incident.time)), 3)})
        settled.append(incident)
    return settled, lost


def is_open(incident: Incident) -> bool:
    """Whether no view has run since."""
    return incident.steps_lost is None
