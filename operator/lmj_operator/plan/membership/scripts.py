"""Views of workers that hold no state, those of a script: who is in the next one, and when those that are there make room for others."""

from lmj_api.protocol import WorkerPhase
from lmj_api.topology import Topology
from lmj_api.view import Member, Resume, View
from lmj_operator.plan.actions import Action, Pause
from lmj_operator.plan.membership.membership import Membership, describe_members, identity, is_in, left, of_member
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.lists import of_ranks
from lmj_operator.plan.observe.observed import PodPhase

MOVE_SECONDS = 20.0
"""The others wait so long for the next pod of a rank that left its own in order: without it they would start the script twice."""
TOGETHER_SECONDS = 5.0
"""A rank that could join waits so long for others that are about to: each start of the script costs what was not saved."""

_LEFT = (WorkerPhase.DRAINED,)


def next_script_view(
    topology: Topology, ranks: tuple[RankFacts, ...], newest: View | None, left_since: float | None, least: int, now: float
) -> Membership:
    """The view that the ranks should be in: the newest while it holds, else the next one, of all that can be in it, ``least`` or more.

    It starts the script anew, which goes on from what it has saved itself.
    """
    members = {m.rank: m for m in newest.members if m.rank < len(ranks)} if newest is not None else {}
    wanted = _wanted(topology, ranks, newest, members, left_since, least, now)
    present = [identity(ranks[rank]) for rank in wanted.ranks]
    missing = [rank for rank, one in zip(wanted.ranks, present, strict=True) if one is None]
    if newest is not None and (going := _going_in_order(ranks, newest, members)):
        return Membership(newest, False, f"waits for {of_ranks(going)} to leave view {newest.number}")
    if missing:
        return Membership(newest, False, f"waits for {of_ranks(missing)}")
    there = [one for one in present if one is not None]
    if newest is not None and not any(left(ranks[rank], newest) for rank in members):
        if list(map(of_member, newest.members)) == there:
            return Membership(newest, False, f"view {newest.number} holds")
        if len(members) < len(newest.members) and any(is_in(ranks[rank], newest) for rank in members):
            return Membership(
                newest, False, f"view {newest.number} holds until its script has ended: the job has fewer replicas now"
            )
    formed = [Member(rank=rank, pod=pod, incarnation=worker, address=address) for rank, pod, worker, address in there]
    reason = f"{describe_members(newest, formed)}; starts the script"
    number = newest.number + 1 if newest is not None else 1
    resume = Resume(step=0, told_by=wanted.leader)
    return Membership(View(number=number, members=formed, resume=resume, reason=reason), True, reason)


def _wanted(
    topology: Topology,
    ranks: tuple[RankFacts, ...],
    newest: View | None,
    members: dict[int, Member],
    left_since: float | None,
    least: int,
    now: float,
) -> Topology:
    """Who is to be in it. While its members run, those of ``newest`` alone: others join when it was left for them."""
    here = [f.rank for f in ranks if identity(f) is not None]
    if newest is None:
        placed = [f.rank for f in ranks if f.pod is None or not f.pod.waits_anywhere]
        return topology.among(placed) if len(placed) >= least else topology
    if left_since is None and members and all(rank in here for rank in members):
        return topology.among(members)
    waits = left_since is not None and now < left_since + MOVE_SECONDS
    coming = [rank for rank, member in members.items() if _stays(ranks[rank], member) or (waits and _moves(ranks[rank], member))]
    going = topology.among({*here, *coming})
    if len(going.present) >= least:
        return going
    # Too few: for the others, too, as long as they have room.
    placed = [f.rank for f in ranks if f.pod is None or not f.pod.waits_anywhere]
    return topology.among(placed) if len(placed) >= least else topology


def _stays(facts: RankFacts, member: Member) -> bool:
    """Whether the rank will have another worker in the pod that it has: its script failed there."""
    pod = facts.pod
    if pod is None or pod.name != member.pod or facts.agent is None or facts.agent.draining:
        return False
    return pod.phase is PodPhase.RUNNING and not pod.outdated and not pod.leaves


def _moves(facts: RankFacts, member: Member) -> bool:
    """Whether the rank left its pod in order, and the next one may be there soon."""
    if facts.pod is None or facts.pod.name == member.pod:
        return facts.in_phase(*_LEFT)
    return facts.pod.phase in (PodPhase.PENDING, PodPhase.RUNNING) and not facts.pod.waits_anywhere and not facts.pod.dark


def _going_in_order(ranks: tuple[RankFacts, ...], newest: View, members: dict[int, Member]) -> list[int]:
    """Ranks whose processes save and end, because all were asked to: the next view is of no use before."""
    asked = any(
        ranks[rank].agent is not None and max(ranks[rank].agent.pause, ranks[rank].agent.handover) >= newest.number  # type: ignore[union-attr]
        for rank in members
    )
    gone = any(left(ranks[rank], newest) for rank in members)
    return [rank for rank in members if is_in(ranks[rank], newest)] if asked and gone else []


def to_join(ranks: tuple[RankFacts, ...], view: View, now: float) -> tuple[tuple[Action, ...], tuple[float, ...]]:
    """What has ``view``, which runs, left for ranks that could be in the next one; and seconds until that is due."""
    members = {m.rank for m in view.members}
    others = [f for f in ranks if f.rank not in members]
    ready = [f.worker.since for f in others if f.worker is not None and _can_join(f)]
    first = ranks[view.members[0].rank]
    if not ready or first.pod is None or first.agent is None or first.agent.pause >= view.number:
        return (), ()
    about_to = any(f.in_phase(WorkerPhase.STARTING) for f in others)
    wait = min(ready) + TOGETHER_SECONDS - now
    # By another clock it may have been ready in the future.
    if about_to and 0 < wait <= TOGETHER_SECONDS:
        return (), (wait,)
    return (Pause(first.pod.name, view.number),), ()


def _can_join(facts: RankFacts) -> bool:
    return facts.in_phase(WorkerPhase.READY) and facts.pod is not None and not facts.pod.leaves and not facts.pod.outdated
