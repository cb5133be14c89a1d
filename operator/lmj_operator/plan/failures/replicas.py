"""Replicas that are lost, and another number of them: what incidents tell of it, once each.

A view and what it is told for are stored together. So a view that lacks a replica which the one before it had is seen as new once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lmj_api.status import Incident, IncidentKind
from lmj_api.topology import Topology
from lmj_api.view import View
from lmj_operator.plan.failures.incidents import OF_REPLICAS
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.times import epoch_seconds, rfc3339


@dataclass(frozen=True, slots=True)
class Change:
    """What a pass has done to the replicas."""

    wanted: Topology
    """All that the spec wants."""
    known: int
    """How many it wanted before; 0: that is not known."""
    before: View | None
    """The newest view as the pass found it,"""
    after: View | None
    """and as it leaves it."""
    runs: bool
    """Every member is in the latter."""
    done: bool
    """The job has trained to its end."""
    ranks: tuple[RankFacts, ...]
    step: int
    """Highest committed step that anybody told of."""
    stateless: bool = False
    """No view says at which step it begins."""

    def begins_at(self, incident: Incident) -> int:
        """The step that the view as the pass leaves it begins at, as far as that is known; ``incident``: one before it."""
        if self.stateless or self.after is None:
            return incident.step
        return self.after.resume.step

    def present(self, view: View | None) -> frozenset[int]:
        """The replicas in ``view``."""
        return frozenset(view.topology(self.wanted.stages).present) if view is not None else frozenset()

    @property
    def recut(self) -> bool:
        """The layers are cut anew: whose pods were not ready for that was not lost, and joins."""
        return self.before is not None and not self.before.is_in(self.wanted.stages)


def with_replicas(incidents: Sequence[Incident], change: Change, now: float) -> list[Incident]:
    """``incidents`` with those of the replicas that are new, and those that are over told as such."""
    told = [*incidents, *_scaled(change, now), *_lost(incidents, change, now)]
    newest = max((n for n, i in enumerate(told) if i.kind is IncidentKind.SCALED), default=None)
    return [_ended(i, change, now, n == newest) if i.kind in OF_REPLICAS else i for n, i in enumerate(told)]


def _scaled(change: Change, now: float) -> list[Incident]:
    before, wanted = change.known, change.wanted.replicas
    if before in (0, wanted):
        return []
    return [
        Incident(
            time=rfc3339(now),
            kind=IncidentKind.SCALED,
            rank=change.wanted.stages * min(before, wanted),
            pod="",
            message=f"scaled from {before} to {counted(wanted)}",
            view=change.before.number if change.before is not None else 0,
            step=change.step,
            steps_lost=0,
            replicas=list(range(min(before, wanted), max(before, wanted))),
            replicas_before=before,
            replicas_after=wanted,
        )
    ]


def _lost(incidents: Sequence[Incident], change: Change, now: float) -> list[Incident]:
    before, after = change.present(change.before), change.present(change.after)
    lost = sorted((before - after) & set(change.wanted.present))
    if not lost or change.before is None or change.recut:
        return []
    gone = [rank for replica in lost for rank in change.wanted.ranks_of(replica)]
    number = change.before.number
    causes = [i for i in incidents if i.rank in gone and i.view == number and i.kind not in OF_REPLICAS]
    first = causes[0] if causes else None
    rank = first.rank if first is not None else _accused(change, gone)
    why = "; ".join(f"rank {i.rank}: {i.message}" for i in causes) or _why(change, gone)
    rest = f"{named(sorted(after))} {'trains' if len(after) == 1 else 'train'} on"
    member = next(m for m in change.before.members if m.rank == rank)
    node = next((f.pod.node for f in change.ranks if f.rank == rank and f.pod is not None and f.pod.name == member.pod), None)
    return [
        Incident(
            time=rfc3339(now),
            kind=IncidentKind.REPLICA_LOST,
            rank=rank,
            pod=member.pod,
            node=first.node if first is not None else node,
            noticed_by=first.noticed_by if first is not None else "its peers",
            message=f"{named(lost)} {'is' if len(lost) == 1 else 'are'} lost: {why}; {rest}",
            view=number,
            step=change.step,
            replicas=lost,
            replicas_before=len(before),
            replicas_after=len(after),
        )
    ]


def _accused(change: Change, gone: Sequence[int]) -> int:
    """The rank of those ``gone`` that a peer has lost; where none says so the first."""
    by_peers = {f.worker.lost_rank for f in change.ranks if f.worker is not None}
    return next((rank for rank in gone if rank in by_peers), gone[0])


def _why(change: Change, gone: Collection[int]) -> str:
    """Why those ranks are out, before anybody knows what happened to them."""
    for facts in change.ranks:
        if facts.rank in gone and facts.pod is not None and facts.pod.waits is not None:
            return f"pod {facts.pod.name} waits: {facts.pod.waits.reason}: {facts.pod.waits.message}"
    for facts in change.ranks:
        if facts.worker is not None and facts.worker.lost_rank in gone and facts.worker.lost is not None:
            return facts.worker.lost
    return "it could not go on at once"


def _ended(incident: Incident, change: Change, now: float, newest: bool) -> Incident:
    """``incident``, told as over if it is. ``newest``: no other number was asked for since."""
    if incident.whole_step is not None:
        return incident
    seconds = round(max(0.0, now - epoch_seconds(incident.time)), 3)
    there, wanted = change.present(change.after), frozenset(change.wanted.present)
    if incident.kind is IncidentKind.SCALED:
        if not newest or change.done:
            why = "training had ended" if newest else "another number was asked for"
            return incident.model_copy(update={"whole_step": change.step, "recovery": f"{why} before so many trained"})
        if not change.runs or change.after is None or there != wanted:
            return incident
        how = f"view {change.after.number}: {change.after.reason}"
        step = max(incident.step, change.begins_at(incident))
        return incident.model_copy(update={"whole_step": step, "whole_seconds": seconds, "recovery": how})
    awaited = frozenset(incident.replicas) & wanted
    if not awaited or change.done:
        return incident.model_copy(update={"whole_step": change.step})
    if not change.runs or change.after is None or change.after.number <= incident.view or not awaited <= there:
        return incident
    return incident.model_copy(update={"whole_step": change.begins_at(incident), "whole_seconds": seconds})


def counted(replicas: int) -> str:
    """``1 replica``, ``2 replicas``."""
    return f"{replicas} replica{'' if replicas == 1 else 's'}"


def named(replicas: Sequence[int]) -> str:
    """``replica 1``, ``replicas 0 and 2``, ``replicas 0, 2 and 3``."""
    names = [str(replica) for replica in replicas]
    if len(names) == 1:
        return f"replica {names[0]}"
    return f"replicas {', '.join(names[:-1])} and {names[-1]}"
