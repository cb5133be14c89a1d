"""Views: whether a new one is needed, who is in it, where it starts from, and why."""

from dataclasses import dataclass

from lmj_api.names import parse_pod_name
from lmj_api.protocol import CheckpointInfo, WorkerPhase
from lmj_api.status import JobStatus
from lmj_api.topology import FIRST, Topology
from lmj_api.view import Member, View
from lmj_operator.plan.membership.choice import chosen
from lmj_operator.plan.membership.common_step import common_step
from lmj_operator.plan.membership.looking import LOOK_SECONDS, Wait, has_looked, to_wait_for
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.lists import few, of_ranks
from lmj_operator.plan.observe.observed import PodObserved, PodPhase

_AWAY = (WorkerPhase.RUNNING, WorkerPhase.FOLLOWING)
"""A worker in one of these leaves what it is in, and says what it has, before it can be in the next view."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The decision on the next view."""

    view: View | None
    """The view that holds now, new or not; None: there was none yet."""
    formed: bool
    """It is a new one."""
    reason: str
    """Why it was formed, or why none was."""
    leaving: tuple[str, ...] = ()
    """Pods whose workers are still in a view that cannot hold: they have to leave it, and say what they have, before the next."""
    wait: Wait | None = None
    """What it has to wait for until it is sure what the newest checkpoint is."""


def newest_view(status: JobStatus, pods: tuple[PodObserved, ...]) -> View | None:
    """The view with the highest number that anybody knows."""
    views = [pod.agent.view for pod in pods if pod.agent is not None and pod.agent.view is not None]
    return max([*views, *([status.view] if status.view else [])], key=lambda v: v.number, default=None)


Identity = tuple[int, str, int, str]
"""Rank, pod, incarnation and address of a member. A pass compares all ranks several times: tuples are a tenth of the work."""


def identity(facts: RankFacts) -> Identity | None:
    """The rank as a member of the next view; None when its worker cannot join one."""
    worker, pod = facts.worker, facts.pod
    if worker is None or pod is None or worker.address is None or not facts.in_phase(WorkerPhase.READY, WorkerPhase.RUNNING):
        return None
    return facts.rank, pod.name, worker.incarnation, worker.address


def of_member(m: Member) -> Identity:
    """As it was told."""
    return m.rank, m.pod, m.incarnation, m.address


def joined(ranks: tuple[RankFacts, ...], view: View) -> bool:
    """Whether the members of ``view`` could form one now, as they are."""
    # The job may have fewer ranks by now.
    return all(m.rank < len(ranks) and identity(ranks[m.rank]) == of_member(m) for m in view.members)


def runs(ranks: tuple[RankFacts, ...], view: View) -> bool:
    """Whether every member of ``view`` is in it."""
    return joined(ranks, view) and all(is_in(ranks[m.rank], view) for m in view.members)


def is_in(facts: RankFacts, view: View) -> bool:
    """Whether the rank's worker runs in ``view``."""
    return facts.in_phase(WorkerPhase.RUNNING) and facts.worker is not None and facts.worker.view == view.number


def left(facts: RankFacts, view: View) -> bool:
    """Whether the rank's worker was in ``view`` and dropped it."""
    return facts.worker is not None and facts.worker.phase is WorkerPhase.READY and facts.worker.view >= view.number


def left_since(status: JobStatus, ranks: tuple[RankFacts, ...], view: View | None, now: float) -> float | None:
    """When it was first seen that a member of ``view``, the newest, had left it, or was done; None: none has.

    By the operator's own clock: an agent's may be seconds ahead of it, or behind.
    """
    if view is None or not any(left(f, view) or f.in_phase(WorkerPhase.COMPLETED) for f in ranks):
        return None
    known = status.left_since if status.view is not None and status.view.number == view.number else None
    # The clock of an operator that ran before may have been ahead of this one's.
    return min(known, now) if known is not None else now


def broken(view: View, pods: tuple[PodObserved, ...]) -> bool:
    """Whether a member of ``view`` is in it no more: a pod that is on its way out, or does not answer, may still train."""
    return _gone(view, pods) or _abandoned(view, pods)


def _gone(view: View, pods: tuple[PodObserved, ...]) -> bool:
    """Whether a member's pod is there no more. Deleted by force, it may train yet for a moment: then its peers have not lost it."""
    there = {pod.name for pod in pods if pod.phase is not PodPhase.GONE}
    return any(m.pod not in there for m in view.members)


def _abandoned(view: View, pods: tuple[PodObserved, ...]) -> bool:
    """Whether a member of ``view`` says that it is in it no more."""
    # One that is on its way out leaves with a checkpoint of all: its peers know when it has.
    there = {pod.name: pod for pod in pods if pod.phase is not PodPhase.TERMINATING}
    return any(is_out(m, there.get(m.pod), view.number) for m in view.members)


def is_out(mine: Member, pod: PodObserved | None, number: int) -> bool:
    """Whether the agent of ``pod`` says that ``mine``, of view ``number``, is in it no more."""
    if pod is None or pod.agent is None:
        return False
    worker = pod.agent.worker
    if worker.incarnation != mine.incarnation or worker.phase not in (WorkerPhase.READY, WorkerPhase.RUNNING):
        return True
    return worker.phase is WorkerPhase.READY and worker.view >= number


def next_view(
    topology: Topology,
    ranks: tuple[RankFacts, ...],
    newest: View | None,
    now: float,
    pods: tuple[PodObserved, ...] = (),
    tries: int = 0,
    saved: CheckpointInfo | None = None,
    look_since: float | None = None,
    left_since: float | None = None,
    least: int = 1,
) -> Membership:
    """The view that the ranks should be in: the newest while it holds, else the next number with all ranks, once all can join.

    Of several replicas those are in it that :func:`~lmj_operator.plan.membership.choice.chosen` says, ``least`` of them or more.

    ``pods``: all of the job's, those of older serials too; ``tries``: restarts in a row without a new step; ``saved``: the newest
    checkpoint that was ever told of; ``look_since``: the stored one. What is in memory is gone on from at once. Anything else only once it
    is sure what the newest checkpoint is, or, from a snapshot, once storage did not answer for :data:`LOOK_SECONDS`.
    """
    topology = chosen(topology, least, ranks, newest, left_since, now)
    every, ranks = ranks, tuple(ranks[rank] for rank in topology.ranks)
    members = [identity(f) for f in ranks]
    missing = [f.rank for f, m in zip(ranks, members, strict=True) if m is None]
    leaving: tuple[str, ...] = ()
    # Of a pod that is gone its peers know better whether it trains, and may leave with a last checkpoint of all, until the next view can be.
    # For that a follower has to leave its source first, as they have to leave the view.
    awaited = any(m is None and not f.in_phase(*_AWAY) for f, m in zip(ranks, members, strict=True))
    if newest is not None and (_abandoned(newest, pods) or (not awaited and _gone(newest, pods))):
        leaving = tuple(f.pod.name for f in ranks if f.pod is not None and f.in_phase(*_AWAY))
    if missing:
        return Membership(newest, False, f"waits for {of_ranks(missing)}", leaving)
    present = [m for m in members if m is not None]
    if newest is not None and list(map(of_member, newest.members)) == present and not any(left(f, newest) for f in ranks):
        return Membership(newest, False, f"view {newest.number} holds")
    if newest is not None and (going := _going(newest, ranks, pods)) is not None:
        return Membership(newest, False, f"waits for {going}, which ends, to leave view {newest.number} with a checkpoint")
    shrinks = newest is not None and any(m.rank >= len(every) for m in newest.members)
    if newest is not None and shrinks and not leaving and any(is_in(facts, newest) for facts in ranks):
        why = f"view {newest.number} holds until its next step boundary: the job has fewer replicas now"
        return Membership(newest, False, why)
    if leaving:
        return Membership(newest, False, f"waits for {few(leaving)} to leave view {newest.number if newest else 0}", leaving)
    first = every[FIRST].agent
    holdings = [f.worker.holding if f.worker else None for f in ranks]
    snapshots = [f.worker.snapshots if f.worker else None for f in ranks]
    resume, start = common_step(topology, holdings, first.checkpoints if first else [], tries, snapshots)
    if not resume.goes_on and not has_looked(first, newest):
        wait = to_wait_for(topology, every, newest, pods, saved, resume, look_since, now)
        if wait is not None:
            return Membership(newest, False, wait.reason, wait=wait)
        if look_since is not None and now >= look_since + LOOK_SECONDS:
            start = f"{start}; what is saved may be newer, but storage did not answer within {LOOK_SECONDS:g} s"
    formed = [Member(rank=rank, pod=pod, incarnation=worker, address=address) for rank, pod, worker, address in present]
    reason = f"{describe_members(newest, formed)}; {start}"
    number = newest.number + 1 if newest else 1
    return Membership(View(number=number, members=formed, resume=resume, reason=reason), True, reason)


def _going(newest: View, ranks: tuple[RankFacts, ...], pods: tuple[PodObserved, ...]) -> str | None:
    """The pod of a member that is being deleted while others train with it: the checkpoint that it leaves with is worth the wait.

    It is bounded: by its grace period, and by its peers, who notice when it is silent.
    """
    if not any(f.in_phase(WorkerPhase.RUNNING) and f.worker is not None and f.worker.view == newest.number for f in ranks):
        return None
    members = {m.pod for m in newest.members}
    return next((pod.name for pod in pods if pod.phase is PodPhase.TERMINATING and pod.name in members), None)


def describe_members(newest: View | None, members: list[Member]) -> str:
    """How ``members`` differ from those of ``newest``, in a clause."""
    if newest is None:
        return "all ranks are ready for the first view"
    before, after = {m.rank: m for m in newest.members}, {m.rank for m in members}
    without = [rank for rank in before if rank not in after]
    changes = [f"{of_ranks(without)} left"] if without else []
    changes += [_change(before.get(m.rank), m) for m in members if before.get(m.rank) != m]
    return few(changes, "; ") if changes else f"a member left view {newest.number}"


def _change(old: Member | None, new: Member) -> str:
    if old is None:
        return f"rank {new.rank} joins in {new.pod}"
    if old.pod != new.pod:
        return f"rank {new.rank} runs in {'the standby ' if parse_pod_name(new.pod)[1] is None else ''}{new.pod} now"
    if old.incarnation != new.incarnation:
        return f"rank {new.rank} has a new worker (number {new.incarnation})"
    return f"rank {new.rank} has a new address"
