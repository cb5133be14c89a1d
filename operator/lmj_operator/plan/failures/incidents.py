"""The record of what interrupted training, and what it cost."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lmj_api.status import Incident, IncidentKind
from lmj_api.view import View
from lmj_operator.plan.failures.failures import Failure
from lmj_operator.plan.observe.times import epoch_seconds, rfc3339
from lmj_operator.plan.observe.units import size

KEPT = 10
"""So many stay,"""
KEPT_OPEN = 50
"""and so many at most while training has not recovered from them: what they cost is told when it has."""


OF_REPLICAS = frozenset({IncidentKind.REPLICA_LOST, IncidentKind.SCALED})
"""Kinds that tell of the group: what befell a rank has an incident of its own."""


OF_ALL = frozenset({IncidentKind.SCALED, IncidentKind.RECUT})
"""Kinds that tell of all ranks."""


NOT_FAILED = frozenset({IncidentKind.MOVED, IncidentKind.SCALED, IncidentKind.RECUT})
"""Kinds that tell of what somebody wanted."""


def record(
    incidents: list[Incident],
    failures: tuple[Failure, ...],
    nodes: Mapping[int, str | None],
    view: int,
    step: int,
    now: float,
    members: Collection[int] = (),
) -> list[Incident]:
    """``incidents`` with ``failures`` behind them. ``nodes``: of each rank's pod; ``members``: the ranks in the newest ``view``."""
    # Who is only on its way into the view costs it nothing.
    outside = {"steps_lost": 0, "recovery": f"view {view} is of others"}
    new = [
        Incident(
            time=rfc3339(now),
            kind=f.kind,
            rank=f.rank,
            pod=f.pod,
            peer=f.peer,
            node=nodes.get(f.rank),
            noticed_by=f.noticed_by,
            message=f.message,
            view=view,
            step=step,
            **(outside if members and f.rank not in members else {}),
        )
        for f in failures
    ]
    return newest([*incidents, *new])


def newest(incidents: list[Incident]) -> list[Incident]:
    """``incidents`` without the oldest of those that are over; those that are not are told of again."""
    spare = len(incidents) - KEPT
    left: list[Incident] = []
    for incident in incidents:
        if spare > 0 and is_over(incident):
            spare -= 1
        else:
            left.append(incident)
    return left[-KEPT_OPEN:]


@dataclass(frozen=True, slots=True)
class Told:
    """What the members of a view say."""

    paused: float | None = None
    """For how long training paused before it, by the clock of one who was there before."""
    step: int = 0
    """The step of which all have told."""


_NOTHING = Told()


def settle(
    incidents: list[Incident],
    running: View | None,
    step: int,
    done: bool,
    now: float,
    told: Told = _NOTHING,
    resumed: int | None = None,
) -> tuple[list[Incident], int]:
    """Fill in what open incidents cost, now that view ``running`` (None: none) runs and is at ``step``. ``told``: by its members.
    ``resumed``: the step that it began with; None: that is not known yet, and neither is what was lost.

    Returns the incidents and the steps newly counted as lost. Incidents of one outage share its cost: the first carries it.
    """
    settled: list[Incident] = []
    lost = 0
    # Of many that end in one pass none goes before the next: that pass reports all.
    for incident in newest(incidents):
        if incident.kind is IncidentKind.SCALED:
            settled.append(incident)  # it costs no step, and says itself when it is over
            continue
        if incident.steps_lost is None and running is not None and resumed is not None and running.number > incident.view:
            cost = max(0, incident.step - resumed - lost)
            lost += cost
            incident = incident.model_copy(update={"steps_lost": cost, "recovery": f"view {running.number}: {running.reason}"})
        elif incident.steps_lost is None and done:
            incident = incident.model_copy(update={"steps_lost": 0, "recovery": "training had ended"})
        # Who measured the pause may not be heard in the same pass.
        heard = incident.kind not in NOT_FAILED or told.paused is not None or told.step > incident.step
        if incident.seconds is None and incident.steps_lost is not None and ((step > incident.step and heard) or done):
            seconds = round(max(0.0, now - epoch_seconds(incident.time)), 3)
            incident = incident.model_copy(update={"seconds": seconds, **_pause(incident, seconds, told)})
        settled.append(incident)
    return settled, lost


def _pause(incident: Incident, seconds: float, told: Told) -> dict[str, Any]:
    if incident.kind not in NOT_FAILED:
        return {}
    if told.paused is not None:
        return {"pause_seconds": round(told.paused, 3), "pause_by": "workers"}
    if incident.step_seconds is None:
        return {}
    return {"pause_seconds": round(max(0.0, seconds - incident.step_seconds), 3), "pause_by": "operator"}


def cost(incident: Incident) -> str | None:
    """What it cost, in a clause; None: that is not known yet."""
    if incident.kind in OF_REPLICAS:
        return "; ".join(filter(None, (_cost(incident), whole(incident)))) or None
    return _cost(incident)


def _cost(incident: Incident) -> str | None:
    if incident.kind is IncidentKind.SCALED:
        return None
    if incident.pause_seconds is not None and incident.pause_by == "operator":
        return (
            f"training paused for at most {incident.pause_seconds:.2f} s beyond a step, as the operator saw it, {again(incident)}"
        )
    if incident.pause_seconds is not None:
        return f"training paused for {incident.pause_seconds:.2f} s beyond a step, {again(incident)}"
    if incident.seconds is not None:
        return f"the next new step came after {incident.seconds:.2f} s, {again(incident)}"
    return again(incident) if incident.steps_lost is not None else None


def whole(incident: Incident) -> str | None:
    """Since when all replicas train, those that were lost or those that are wanted, in a clause; None: they do not yet, or not any more."""
    if incident.whole_step is None or incident.whole_seconds is None:
        return None
    who = "so many train" if incident.kind is IncidentKind.SCALED else "back"
    return f"{who} since step {incident.whole_step}, after {incident.whole_seconds:.2f} s"


def again(incident: Incident) -> str:
    """The steps that it cost, in a clause."""
    return f"{incident.steps_lost or 0} steps done again"


def proof(incident: Incident) -> str | None:
    """What was copied for a live move, and that it was right, in a clause; None: nothing was."""
    copied = incident.copied
    if copied is None or copied.digest is None:
        return None
    sent = f"{size(copied.done)} copied and {size(copied.gradients)} of gradients"
    return f"{sent}, digest {copied.digest} of step {copied.in_sync_step} at both"


def is_over(incident: Incident) -> bool:
    """Whether all is told of it."""
    return incident.whole_step is not None if incident.kind in OF_REPLICAS else incident.seconds is not None


def is_open(incident: Incident) -> bool:
    """Whether no view has run since."""
    return incident.steps_lost is None
