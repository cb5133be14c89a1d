"""What happened, as lines for people: pure functions of events and of status before and after."""

from lmj_api.bounds import printable
from lmj_api.protocol import Evaluation, EventKind, Progress
from lmj_api.status import IncidentKind, JobStatus, Phase
from lmj_operator.backend.port import PodEvent
from lmj_operator.plan.failures.incidents import NOT_FAILED, OF_REPLICAS, again, cost, proof, whole
from lmj_operator.plan.failures.replicas import named
from lmj_operator.plan.observe.units import duration, size
from lmj_operator.plan.report.conditions import PUBLISHED, STRAGGLER

_NOT_FAILED = {IncidentKind.MOVED: "moved", IncidentKind.SCALED: "asked"}


def event_line(heard: PodEvent) -> str | None:
    """A line for an event that stands for itself; None for those that the status tells, or that only count."""
    line = _event_line(heard)
    return None if line is None else printable(line)


def _event_line(heard: PodEvent) -> str | None:
    event = heard.event
    if event is None:
        return None
    match event.kind:
        case EventKind.EVALUATED if event.evaluation is not None:
            return evaluation_line(event.evaluation) + (" (best so far)" if event.best else "")
        case EventKind.CHECKPOINTED if event.checkpoint is not None:
            removed = f", removed {', '.join(event.removed)}" if event.removed else ""
            return f"checkpoint {event.checkpoint.name} ({size(event.checkpoint.size)}){removed}"
        case EventKind.WARNING:
            return f"warning: {heard.pod if heard.rank is None else f'rank {heard.rank}'}: {event.message}"
        case EventKind.PREPARING if event.message and heard.rank == 0:
            return event.message
    return None


def evaluation_line(result: Evaluation) -> str:
    """One evaluation."""
    return f"{result.split} at step {result.step}: {result.scores_text}"


def changes(before: JobStatus, after: JobStatus) -> list[str]:
    """Lines for what is new in ``after``: incidents, views, and a way into or out of a standstill."""
    lines = []
    known = {(i.time, i.pod, i.kind): i for i in before.incidents}
    for incident in after.incidents:
        old = known.get((incident.time, incident.pod, incident.kind))
        if old is None:
            what = _NOT_FAILED.get(incident.kind, "incident")
            # A new cut's sentence says at which step itself.
            lines.append(
                incident.message if incident.kind is IncidentKind.RECUT else f"{what} at step {incident.step}: {incident.message}"
            )
        if incident.kind in OF_REPLICAS:
            there = whole(incident) if old is None or old.whole_seconds is None else None
            who = named(incident.replicas) if incident.kind is IncidentKind.REPLICA_LOST else incident.message
            lines += [f"{who}: {there}"] if there is not None else []
        elif incident.seconds is not None and (old is None or old.seconds is None):
            if incident.kind in NOT_FAILED:
                lines += [line for line in (cost(incident), proof(incident)) if line is not None]
            else:
                lines.append(f"recovered in {incident.seconds:.1f} s, {again(incident)}")
    held = {c.type for c in before.conditions if c.status == "True"}
    lines += [f"slow: {c.message}" for c in after.conditions if c.type == STRAGGLER and c.status == "True" and c.type not in held]
    said = {(c.type, c.reason) for c in before.conditions}
    lines += [f"hub: {c.message}" for c in after.conditions if c.type == PUBLISHED and (c.type, c.reason) not in said]
    if after.view is not None and (before.view is None or before.view.number != after.view.number):
        lines.append(f"view {after.view.number}, {len(after.view.members)} ranks: {after.view.reason}")
    return [printable(line) for line in lines]


def progress_line(at: Progress, phase: Phase) -> str:
    """Where training stands, in one line."""
    parts = [f"step {at.step}/{at.steps}"]
    if at.epoch or not at.step:  # a script may count none
        parts.append(f"epoch {at.epoch:.2f}")
    if at.loss is not None:
        parts.append(f"loss {at.loss:.4f}")
    if at.samples_per_second is not None:
        parts.append(f"{at.samples_per_second:.1f} samples/s")
    if at.eta_seconds is not None:
        parts.append(f"ETA {duration(at.eta_seconds)}")
    if phase is not Phase.RUNNING:
        parts.append(phase.value.lower())
    elif at.activity != "train":
        parts.append(at.activity)
    return ", ".join(parts)
