"""Which replicas the next view has. With one there is no choice: all ranks."""

from lmj_api.protocol import Holding, WorkerPhase
from lmj_api.topology import Topology
from lmj_api.view import View
from lmj_operator.plan.actions import Action, Pause
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import PodPhase

LEAVE_SECONDS = 1.0
"""A replica whose workers live is waited for so long when others have left the view: they hear of it a little later."""
ACCUSED_SECONDS = 0.25
"""And so long when a peer has lost it: its agent may not have seen yet that it is gone."""
_HERE = (WorkerPhase.READY, WorkerPhase.RUNNING)


def chosen(
    topology: Topology, least: int, ranks: tuple[RankFacts, ...], newest: View | None, left_since: float | None, now: float
) -> Topology:
    """The replicas that are to be in the next view: those that can go on at once where these are ``least`` or more, else all that have room.

    ``left_since``: when it was first seen that ``newest`` was left.
    """
    if topology.replicas == 1:
        return topology
    # What was of another cut says nothing of who can go on.
    if newest is not None and newest.is_in(topology.stages):
        before = topology.among([m.rank for m in newest.members])
        # None of them is of the job where it has fewer replicas now, and had lost those that it keeps.
        if before.present and left_since is None and all(_is_here(ranks[rank]) for rank in before.ranks):
            return before
        going = _going_on(topology, before, ranks, left_since, now)
        if len(going.present) >= least:
            return going
    placed = topology.among([f.rank for f in ranks if not _has_no_room(f)])
    # Rank 0 knows the checkpoints.
    return placed if len(placed.present) >= least and 0 in placed.present else topology


def _going_on(
    topology: Topology, before: Topology, ranks: tuple[RankFacts, ...], left_since: float | None, now: float
) -> Topology:
    """Those with a state that training can go on from, now that the view of ``before`` is over; and those that may have it in a moment."""
    ready = topology.among([f.rank for f in ranks if f.in_phase(WorkerPhase.READY) and _holding(f) is not None])
    members = frozenset(before.present)
    steps = [attainable(ready, replica, ranks) for replica in ready.present if replica in members]
    newest = max((step for step in steps if step is not None), default=None)
    going = {replica for replica in ready.present if newest is not None and _can_be_at(newest, ready, replica, ranks)}
    gone = now - left_since if left_since is not None else 0.0
    if gone < LEAVE_SECONDS:
        lost = {f.worker.lost_rank for f in ranks if f.worker is not None and f.in_phase(WorkerPhase.READY)}
        alive = topology.among([f.rank for f in ranks if _may_say(f) or _is_in_sync(f)])
        for replica in set(alive.present) - set(ready.present):
            member = replica in members
            joins = all(_holding(ranks[rank]) is not None for rank in topology.ranks_of(replica))
            accused = not lost.isdisjoint(topology.ranks_of(replica))
            if (member or joins) and (gone < ACCUSED_SECONDS or not accused):
                going.add(replica)
    return topology.among([rank for replica in going for rank in topology.ranks_of(replica)])


def after_first(topology: Topology, ranks: tuple[RankFacts, ...]) -> range:
    """Ranks whose pods are not made before those of the first replica have a node.

    Where no state is in memory, training begins with the first replica, whose rank 0 knows the checkpoints. The scheduler places pods in any
    order: where there is room for some of them alone, it would be of no use to the others.
    """
    if any(_may_say(f) for f in ranks):
        return range(0)
    first = topology.ranks_of(0)
    placed = all((pod := ranks[rank].pod) is not None and (pod.node or pod.phase is not PodPhase.PENDING) for rank in first)
    return range(0) if placed else range(first.stop, len(ranks))


def to_shrink(ranks: tuple[RankFacts, ...], view: View | None) -> tuple[Action, ...]:
    """What has the members of ``view`` leave it at a step boundary when the job has fewer ranks now."""
    if view is None or all(m.rank < len(ranks) for m in view.members):
        return ()
    stay = [ranks[m.rank] for m in view.members if m.rank < len(ranks)]
    trains = all(f.in_phase(WorkerPhase.RUNNING) and f.worker is not None and f.worker.view == view.number for f in stay)
    if not stay or not trains or stay[0].pod is None or stay[0].agent is None or stay[0].agent.pause >= view.number:
        return ()
    return (Pause(stay[0].pod.name, view.number),)


def due_times(left_since: float | None, now: float) -> list[float]:
    """Seconds until others are not waited for any more."""
    ends = [left_since + ACCUSED_SECONDS, left_since + LEAVE_SECONDS] if left_since is not None else []
    return [end - now for end in ends if end > now]


def attainable(topology: Topology, replica: int, ranks: tuple[RankFacts, ...]) -> int | None:
    """The step that all ranks of ``replica`` can go on from with what they have in memory; None: there is none."""
    held = [_holding(ranks[rank]) for rank in topology.ranks_of(replica)]
    there = [holding for holding in held if holding is not None]
    if len(there) < len(held):
        return None
    step = max(holding.step for holding in there)
    return step if all(reaches(holding, step) for holding in there) else None


def _can_be_at(step: int, topology: Topology, replica: int, ranks: tuple[RankFacts, ...]) -> bool:
    held = [_holding(ranks[rank]) for rank in topology.ranks_of(replica)]
    return all(holding is not None and reaches(holding, step) for holding in held)


def reaches(holding: Holding, step: int) -> bool:
    """Whether who has ``holding`` has the state after ``step``, or all that it needs to take that step."""
    return holding.step == step or (holding.prepared and holding.step + 1 == step)


def _holding(facts: RankFacts) -> Holding | None:
    return facts.worker.holding if facts.worker is not None else None


def _is_here(facts: RankFacts) -> bool:
    return facts.worker is not None and facts.worker.address is not None and facts.in_phase(*_HERE)


def _may_say(facts: RankFacts) -> bool:
    """Whether the rank has a state, or its worker trains and will say what it has. One that is new has nothing."""
    return _is_here(facts) and (facts.in_phase(WorkerPhase.RUNNING) or _holding(facts) is not None)


def _is_in_sync(facts: RankFacts) -> bool:
    return facts.in_phase(WorkerPhase.FOLLOWING) and _holding(facts) is not None


def _has_no_room(facts: RankFacts) -> bool:
    return facts.pod is not None and facts.pod.waits_anywhere
