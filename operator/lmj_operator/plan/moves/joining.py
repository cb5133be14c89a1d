"""Replicas that are not in the view: each rank follows one of its stage that is, beside training, and all join at a step boundary."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lmj_api.protocol import WorkerPhase
from lmj_api.spec.recovery import Recovery
from lmj_api.status import JoinStatus
from lmj_api.topology import Topology
from lmj_api.view import Member, View
from lmj_operator.plan.actions import Action, Follow, HandOver, LeaveView
from lmj_operator.plan.failures.budget import backoff
from lmj_operator.plan.observe.facts import RankFacts

_MAY_FOLLOW = (WorkerPhase.READY, WorkerPhase.FOLLOWING)


@dataclass(frozen=True, slots=True)
class Joins:
    """All replicas that are on their way into the view."""

    entries: tuple[JoinStatus, ...]
    actions: tuple[Action, ...] = ()
    due: tuple[float, ...] = ()
    """Seconds until something is due."""
    urgent: bool = False
    """The members leave the view for them: training waits."""

    def followed(self, topology: Topology) -> frozenset[int]:
        """The ranks that others follow for it."""
        return frozenset(rank for entry in self.entries if entry.source is not None for rank in topology.ranks_of(entry.source))


def plan_joins(
    topology: Topology,
    ranks: tuple[RankFacts, ...],
    view: View,
    known: Sequence[JoinStatus],
    moving: Collection[int],
    recovery: Recovery,
    now: float,
) -> Joins:
    """Those that join ``view``, which trains. ``known``: the stored ones; ``moving``: ranks that are followed because they move.

    Which replica is followed is acted on in the next pass, when it is durable.
    """
    there = topology.among([m.rank for m in view.members])
    before = {entry.replica: entry for entry in known if entry.replica in there.absent}
    busy = {there.rank(rank).replica for rank in moving}
    busy |= {entry.source for entry in before.values() if entry.source is not None}
    # The one that leads last: it has the most to do.
    free = [source for source in there.present if source not in busy]
    present = frozenset(there.present)
    entries: list[JoinStatus] = []
    actions: list[Action] = []
    due: list[float] = []
    for replica in sorted(there.absent):
        entry = before.get(replica, JoinStatus(replica=replica, since=now))
        group = [ranks[rank] for rank in topology.ranks_of(replica)]
        if not all(_may_follow(facts) for facts in group) or (entry.source is not None and entry.source not in present):
            entry = _failed(entry, recovery, now) if entry.source is not None else entry
        elif entry.source is None:
            if now < entry.not_before:
                due.append(entry.not_before - now)
            elif free:
                entry = entry.model_copy(update={"source": free.pop(), "state": "Starting", "since": now})
                due.append(0.0)
        else:
            sources = [ranks[rank] for rank in there.ranks_of(entry.source)]
            entry, more = _brought_on(entry, group, sources, view, recovery, now)
            actions += more
        if entry.source is None:
            actions += [
                LeaveView(f.pod.name, view.number) for f in group if f.pod is not None and f.in_phase(WorkerPhase.FOLLOWING)
            ]
        if entry.source is not None or entry.failures:
            entries.append(entry)
    urgent = any(isinstance(action, HandOver) for action in actions)
    return Joins(tuple(entries), tuple(actions), tuple(due), urgent)


def _may_follow(facts: RankFacts) -> bool:
    if facts.agent is None or facts.agent.draining or facts.pod is None or facts.pod.leaves or facts.pod.outdated:
        return False
    return facts.worker is not None and facts.worker.address is not None and facts.in_phase(*_MAY_FOLLOW)


def _failed(entry: JoinStatus, recovery: Recovery, now: float) -> JoinStatus:
    """``entry`` once its stream ended. It may have cost training time, so the next one comes later and later."""
    failures = entry.failures + 1
    wait = now + backoff(recovery, failures)
    return entry.model_copy(update={"source": None, "state": "Waiting", "since": now, "failures": failures, "not_before": wait})


def _brought_on(
    entry: JoinStatus, group: Sequence[RankFacts], sources: Sequence[RankFacts], view: View, recovery: Recovery, now: float
) -> tuple[JoinStatus, tuple[Action, ...]]:
    """``entry`` as it is now, and what brings it on. ``group``: the ranks of the replica; ``sources``: whom they follow, stage by stage."""
    follows = [facts.in_phase(WorkerPhase.FOLLOWING) for facts in group]
    if entry.state != "Starting" and not all(follows):
        return _failed(entry, recovery, now), ()
    actions: list[Action] = []
    for facts, source in zip(group, sources, strict=True):
        worker, pod = facts.worker, facts.pod
        assert worker is not None
        assert worker.address is not None
        assert pod is not None
        if source.agent is None or source.pod is None or source.agent.handover >= view.number:
            continue
        me = Member(rank=facts.rank, pod=pod.name, incarnation=worker.incarnation, address=worker.address)
        if source.agent.follower == me:
            continue
        if facts.in_phase(WorkerPhase.FOLLOWING):
            # Its source has let go of it, and it has not heard of that.
            actions.append(LeaveView(pod.name, view.number))
        else:
            actions.append(Follow(source.pod.name, me))
    synced = all(facts.worker is not None and facts.worker.holding is not None for facts in group)
    state = "Starting" if not all(follows) else "InSync" if synced else "Copying"
    if state == "InSync" and not actions:
        actions += [HandOver(source.pod.name, view.number) for source in sources if source.pod is not None]
    if state != entry.state:
        entry = entry.model_copy(update={"state": state, "since": now})
    return entry, tuple(actions)
