"""Views: whether a new one is needed, who is in it, where it starts from, and why."""

from dataclasses import dataclass

from lmj_api.protocol import WorkerPhase
from lmj_api.status import JobStatus
from lmj_api.view import Member, Resume, View
from lmj_operator.plan.facts import RankFacts
from lmj_operator.plan.observed import PodObserved


@dataclass(frozen=True, slots=True)
class Membership:
    """The decision on the next view."""

    view: View | None
    """The view that holds now, new or not; None: there was none yet."""
    formed: bool
    """It is a new one."""
    reason: str
    """Why it was formed, or why none was."""


def newest_view(status: JobStatus, pods: tuple[PodObserved, ...]) -> View | None:
    """The view with the highest number that anybody knows."""
    views = [pod.agent.view for pod in pods if pod.agent is not None and pod.agent.view is not None]
    return max([*views, *([status.view] if status.view else [])], key=lambda v: v.number, default=None)


def member(facts: RankFacts) -> Member | None:
    """The rank as a member of the next view; None when its worker cannot join one."""
    worker, pod = facts.worker, facts.pod
    if worker is None or pod is None or worker.address is None or not facts.in_phase(WorkerPhase.READY, WorkerPhase.RUNNING):
        return None
    return Member(rank=facts.rank, pod=pod.name, incarnation=worker.incarnation, address=worker.address)


def joined(ranks: tuple[RankFacts, ...], view: View) -> bool:
    """Whether the members of ``view`` are exactly those that could form a view now."""
    return [member(f) for f in ranks] == view.members


def left(facts: RankFacts, view: View) -> bool:
    """Whether the rank's worker was in ``view`` and dropped it."""
    return facts.worker is not None and facts.worker.phase is WorkerPhase.READY and facts.worker.view >= view.number


def next_view(ranks: tuple[RankFacts, ...], newest: View | None) -> Membership:
    """The view that the ranks should be in: the newest while it holds, else the next number with all ranks, once all can join."""
    members = [member(f) for f in ranks]
    missing = [f.rank for f, m in zip(ranks, members, strict=True) if m is None]
    if missing:
        return Membership(newest, False, f"waits for rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}")
    present = [m for m in members if m is not None]
    if newest is not None and newest.members == present and not any(left(f, newest) for f in ranks):
        return Membership(newest, False, f"view {newest.number} holds")
    first = ranks[0].agent
    if first is None or not first.scanned:
        return Membership(newest, False, "waits for rank 0 to have looked through the checkpoints")
    reason = _why(newest, present)
    # Checkpoints come newest first, and what a worker says of itself is not trusted over a durable manifest.
    good = max((c for c in first.checkpoints if c.problem is None), key=lambda c: c.step, default=None)
    resume = Resume(step=good.step, checkpoint=good.name) if good else Resume(step=0)
    number = newest.number + 1 if newest else 1
    return Membership(View(number=number, members=present, resume=resume, reason=reason), True, reason)


def _why(newest: View | None, members: list[Member]) -> str:
    if newest is None:
        return "all ranks are ready for the first view"
    before = {m.rank: m for m in newest.members}
    if len(before) != len(members):
        return f"the job has {len(members)} ranks now, not {len(before)}"
    changes = [_change(before.get(m.rank), m) for m in members if before.get(m.rank) != m]
    return "; ".join(changes) if changes else f"a member left view {newest.number}"


def _change(old: Member | None, new: Member) -> str:
    if old is None or old.pod != new.pod:
        return f"rank {new.rank} runs in {new.pod} now"
    if old.incarnation != new.incarnation:
        return f"rank {new.rank} has a new worker (number {new.incarnation})"
    return f"rank {new.rank} has a new address"
