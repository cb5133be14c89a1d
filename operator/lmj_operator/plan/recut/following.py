"""Whom the pods of the next cut follow: every rank of one replica that trains, each for what its stage has."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lmj_api.cut import Cut
from lmj_api.protocol import Recut, WorkerPhase
from lmj_api.spec.recovery import Recovery
from lmj_api.topology import Topology
from lmj_api.view import Member, View
from lmj_operator.plan.actions import Action, FollowParts, LeaveView
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.recut.pods import Successor, again, is_silent


@dataclass(frozen=True, slots=True)
class Streams:
    """Who follows whom now, and what brings that about."""

    successors: list[Successor]
    actions: tuple[Action, ...]
    under_way: bool
    """Somebody follows, or is to."""


def streams(
    found: Sequence[Successor],
    topology: Topology,
    cut: Cut,
    ranks: tuple[RankFacts, ...],
    before: Topology,
    view: View,
    busy: bool,
    recovery: Recovery,
    now: float,
) -> Streams:
    """``found``: of ``topology``, which has the next ``cut``; ``ranks``: those that train, in ``view`` and ``before``. ``busy``: nobody is to
    follow now.
    """
    by_source: dict[int, list[Member]] = {}
    after: list[Successor] = []
    leaving: list[Action] = []
    for replica in topology.present:
        group = [found[rank] for rank in topology.ranks_of(replica)]
        source = _source(replica, group, before)
        sources = [ranks[rank] for rank in before.ranks_of(source)]
        begins = all(_may_follow(each, now) for each in group)
        for known in group:
            mine = member_of(known)
            told = [_tells(facts, cut, mine) for facts in sources]
            # Whom it follows is acted on in the next pass, when it is durable.
            may = begins and not busy and source == known.entry.source
            each, wanted = _stand(_following(known, source), told, may, busy)
            lets_go = not wanted and _follows(each) and not any(told)
            after.append(again(each, recovery, now) if lets_go and is_silent(each, recovery, now) else each)
            if wanted and mine is not None:
                for facts in sources:
                    by_source.setdefault(facts.rank, []).append(mine)
            elif mine is not None and lets_go:
                # One that was cut off hears from nobody that it follows no more.
                leaving.append(LeaveView(mine.pod, view.number))
    return Streams(after, (*told_to(ranks, cut, by_source), *leaving), bool(by_source))


def told_to(ranks: tuple[RankFacts, ...], cut: Cut, by_source: dict[int, list[Member]]) -> tuple[Action, ...]:
    """What tells each of ``ranks`` whom ``by_source`` has follow it, where it does not know."""
    actions = []
    for facts in ranks:
        members = by_source.get(facts.rank, [])
        recut = Recut(cut=cut, followers=members) if members else None
        if facts.agent is not None and facts.pod is not None and facts.agent.recut != recut:
            actions.append(FollowParts(facts.pod.name, recut))
    return tuple(actions)


def member_of(each: Successor) -> Member | None:
    """It as a member of a view; None: its worker has no address."""
    worker = each.pod.agent.worker if each.pod is not None and each.pod.agent is not None else None
    if worker is None or each.pod is None or worker.address is None or worker.incarnation != each.entry.incarnation:
        return None
    return Member(rank=each.entry.rank, pod=each.pod.name, incarnation=worker.incarnation, address=worker.address)


def _source(replica: int, group: Sequence[Successor], before: Topology) -> int:
    """Which replica is followed: the one that is already, as long as it trains. The one that leads last: it has the most to do."""
    known = group[0].entry.source
    present = before.present
    return known if known is not None and known in present else present[-1 - replica % len(present)]


def _following(each: Successor, source: int) -> Successor:
    return replace(each, entry=each.entry.model_copy(update={"source": source}))


def _stand(each: Successor, told: Collection[bool], begins: bool, busy: bool) -> tuple[Successor, bool]:
    """``each`` as it stands, and whether its sources are to have it follow. ``told``: of each source, whether it is told to."""
    entry = each.entry
    if not _follows(each):
        return each, begins and entry.state == "Starting"
    if busy:
        return replace(each, entry=entry.model_copy(update={"state": "Starting"})), False
    if entry.state == "Starting" and not all(told):
        return each, begins
    if not all(told):
        return each, False  # a source has lost it, or let go of it: it begins anew with all of them
    synced = each.pod is not None and each.pod.agent is not None and each.pod.agent.worker.holding is not None
    changes = {"state": "InSync", "failures": 0} if synced else {"state": "Copying"}
    return replace(each, entry=entry.model_copy(update=changes)), True


def _tells(facts: RankFacts, cut: Cut, mine: Member | None) -> bool:
    recut = facts.agent.recut if facts.agent is not None else None
    return recut is not None and recut.cut == cut and mine in recut.followers


def _follows(each: Successor) -> bool:
    return each.pod is not None and each.pod.agent is not None and each.pod.agent.worker.phase is WorkerPhase.FOLLOWING


def _may_follow(each: Successor, now: float) -> bool:
    pod = each.pod
    if pod is None or pod.agent is None or pod.leaves or pod.agent.draining or now < each.entry.not_before:
        return False
    return pod.agent.worker.phase in (WorkerPhase.READY, WorkerPhase.FOLLOWING) and member_of(each) is not None
