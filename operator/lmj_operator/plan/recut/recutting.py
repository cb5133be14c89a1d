"""What is done in one pass for another cut of the layers, beside training."""

from collections.abc import Mapping
from dataclasses import dataclass

from lmj_api.status import RecutFollower, RecutStatus
from lmj_api.topology import Topology
from lmj_api.view import View
from lmj_operator.plan.actions import Action, HandOver
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import Observed
from lmj_operator.plan.recut.following import streams, told_to
from lmj_operator.plan.recut.pods import Successor, successors, without_overtaken

STATES = ("Pending", "Starting", "Copying", "InSync")
"""In order."""


@dataclass(frozen=True, slots=True)
class Recutting:
    """The outcome."""

    status: RecutStatus | None
    made: dict[str, int]
    """As in the status."""
    actions: tuple[Action, ...] = ()
    due: tuple[float, ...] = ()
    """Seconds until something is due."""
    under_way: bool = False
    """Somebody follows, or is to: nobody else begins to."""
    urgent: bool = False
    """All leave the view for it."""


def plan_recut(
    observed: Observed, ranks: tuple[RankFacts, ...], view: View | None, busy: bool, made: Mapping[str, int], now: float
) -> Recutting:
    """``view``: the one that trains; None: none does, and all stays as it is. ``busy``: ranks move, or replicas join: they come first.

    ``made``: as in the status.
    """
    cut, known = observed.wanted_cut, observed.status.recut
    if cut is None:
        return Recutting(None, dict(made), told_to(ranks, observed.spec.pipeline.cut, {}) if view is not None else ())
    known = without_overtaken(known, observed.status.serials) if known is not None else None
    status = known if known is not None and known.cut == cut else RecutStatus(cut=cut, since=now)
    if view is None:
        return Recutting(status, dict(made))
    if status.given_up is not None:
        return Recutting(status, dict(made), told_to(ranks, cut, {}))
    before = view.topology(observed.spec.pipeline.stages)
    topology = Topology(cut.stages, len(before.present))
    handing = any(facts.agent is not None and facts.agent.handover >= view.number for facts in ranks)
    found = successors(observed, topology, status, made, handing, now)
    final = next((each.final for each in found if each.final is not None), None)
    if final is not None:
        over = RecutStatus(cut=cut, since=status.since, given_up=final)
        return Recutting(over, dict(made), told_to(ranks, cut, {}))
    now_followed = streams(found, topology, cut, ranks, before, view, busy, observed.spec.recovery, now)
    entries = [_dated(each.entry, known, now) for each in now_followed.successors]
    actions = [action for each in found for action in each.actions] + list(now_followed.actions)
    ends = () if busy or now_followed.actions else _hand_over(now_followed.successors, topology, before, ranks, view, observed)
    serials = {str(entry.rank): max(entry.serial, made.get(str(entry.rank), 0)) for entry in entries}
    due = [entry.not_before - now for entry in entries if entry.not_before > now]
    if _stand(entries) != _stand(known.followers if known is not None and known.cut == cut else []):
        due.append(0.0)  # what is stored now is acted on in the next pass: a step of the job may be long
    state = min((entry.state for entry in entries), key=STATES.index)
    status = RecutStatus(cut=cut, since=status.since, state=state, followers=entries)
    urgent = bool(ends) or (handing and state == "InSync")
    return Recutting(status, {**made, **serials}, (*actions, *ends), tuple(due), now_followed.under_way, urgent)


def _hand_over(
    found: list[Successor], topology: Topology, before: Topology, ranks: tuple[RankFacts, ...], view: View, observed: Observed
) -> tuple[Action, ...]:
    """What ends the view, when those that are in sync are enough: all that have room, and as many replicas as are enough to train."""
    groups = {replica: [found[rank] for rank in topology.ranks_of(replica)] for replica in topology.present}
    ready = [r for r, group in groups.items() if all(each.entry.state == "InSync" for each in group)]
    others = [group for replica, group in groups.items() if replica not in ready]
    if len(ready) < observed.spec.data_parallel.min_replicas or not all(_has_no_room(group) for group in others):
        return ()
    sources = {found[topology.ranks_of(replica)[0]].entry.source for replica in ready}
    told = [ranks[rank] for source in sorted(s for s in sources if s is not None) for rank in before.ranks_of(source)]
    return tuple(
        HandOver(facts.pod.name, view.number)
        for facts in told
        if facts.pod is not None and facts.agent is not None and facts.agent.handover < view.number
    )


def _has_no_room(group: list[Successor]) -> bool:
    return any(each.pod is not None and each.pod.waits_anywhere for each in group)


def _stand(entries: list[RecutFollower]) -> list[tuple[int, str, int, int | None]]:
    """How far each is."""
    return [(entry.serial, entry.state, entry.incarnation, entry.source) for entry in entries]


def _dated(entry: RecutFollower, known: RecutStatus | None, now: float) -> RecutFollower:
    """``entry`` with the time since when it stands as it does."""
    before = next((e for e in known.followers if e.pod == entry.pod), None) if known is not None else None
    same = before is not None and (before.state, before.incarnation) == (entry.state, entry.incarnation)
    return entry.model_copy(update={"since": before.since if same and before is not None else now})
