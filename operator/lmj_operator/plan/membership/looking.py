"""Which checkpoint is the newest: known for certain once somebody has looked after the last who could save one was done."""

from dataclasses import dataclass

from lmj_api.protocol import MOST_NAMES, AgentState, CheckpointInfo, WorkerPhase
from lmj_api.topology import FIRST, Topology
from lmj_api.view import Resume, View
from lmj_operator.plan.actions import Look
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import PodObserved, PodPhase

SILENT_SECONDS = 3.0
"""A pod that is being deleted and does not answer for so long is not waited for: what it still saves is of a view that is over."""

LOOK_SECONDS = 30.0
"""For which a look is waited for where a snapshot in memory can be gone on from without it: storage that does not answer may hang."""

_SAVES = (WorkerPhase.RUNNING, WorkerPhase.READY)


@dataclass(frozen=True, slots=True)
class Wait:
    """What the next view waits for before it is certain where it starts from."""

    reason: str
    look: Look | None = None
    """What has the checkpoints looked through again."""
    due: float | None = None
    """Seconds until the wait is over, where nobody reports that it is."""
    since: float | None = None
    """Since when a look is waited for; None: it is not the look that is."""


def has_looked(first: AgentState | None, newest: View | None) -> bool:
    """Whether rank 0's agent, ``first``, knows all checkpoints: it looked when ``newest`` was over, and hears of its own worker's since."""
    if first is None or not first.scanned:
        return False
    return newest is None or first.looked is None or first.looked >= newest.number


def last_saver(
    topology: Topology, ranks: tuple[RankFacts, ...], pods: tuple[PodObserved, ...], now: float
) -> tuple[str, float | None] | None:
    """A pod of a rank that may have led, and may still make a checkpoint valid, with the seconds for which it is waited for (None: until it
    is done).

    The leader alone writes manifests. The wait is bounded: a pod that answers, or that nobody can ask, is ended with its grace
    period, by its agent and its node.
    """
    for pod in pods:
        cut = topology if pod.cut is None else Topology(pod.cut.stages)
        if pod.rank is None or cut.stage(pod.rank) != 0 or pod.phase not in (PodPhase.RUNNING, PodPhase.TERMINATING):
            continue
        # Of a rank that the job has no more: it goes when the next view is there, and saves nothing once it has left its own.
        former = pod.rank >= len(ranks)
        if not former and pod.serial >= ranks[pod.rank].serial:
            continue
        if pod.agent is not None:
            phase = pod.agent.worker.phase
            if phase is WorkerPhase.RUNNING or (phase in _SAVES and not former):
                return pod.name, None
            continue
        if pod.keyless:
            return pod.name, None
        # None: nobody asked it, because nothing runs in it.
        left = pod.unreachable_since + SILENT_SECONDS - now if pod.unreachable_since is not None and not pod.dark else 0.0
        if left > 0:
            return pod.name, left
    return None


def look(
    topology: Topology,
    ranks: tuple[RankFacts, ...],
    newest: View,
    pods: tuple[PodObserved, ...],
    saved: CheckpointInfo | None,
    now: float,
) -> Look | None:
    """What has rank 0's agent look now that ``newest`` is over; None: it has, is not there, or is not to look yet.

    Who looks declares the view over, and no checkpoint of it is accepted after that. So it is not over while anybody trains in it: the
    last checkpoint may be under way, whether or not rank 0 itself can be seen. Where rank 0's pod ended, nobody saves any more.
    """
    first = ranks[FIRST]
    if first.pod is None or first.agent is None or first.agent.looked is None or has_looked(first.agent, newest):
        return None
    ended = any(pod.name == newest.members[0].pod and pod.phase is PodPhase.GONE for pod in pods)
    if not ended and any(f.worker and f.in_phase(WorkerPhase.RUNNING) and f.worker.view >= newest.number for f in ranks):
        return None
    if last_saver(topology, ranks, pods, now) is not None:
        return None
    told = [c for pod in pods if pod.agent is not None for c in pod.agent.good_checkpoints]
    known = {c.name for c in first.agent.checkpoints}
    newest_first = sorted([*told, *([saved] if saved is not None else [])], key=lambda c: (c.step, c.name), reverse=True)
    names = list(dict.fromkeys(c.name for c in newest_first if c.name not in known))
    return Look(first.pod.name, newest.number, tuple(names[:MOST_NAMES]))


def newest_possible(topology: Topology, ranks: tuple[RankFacts, ...], newest: View) -> int | None:
    """A step that no checkpoint which the next view may start from can be newer than; None: that is not known.

    A checkpoint has a part of every rank that writes, and a rank writes its part of a step that it has committed. What it has in memory is of no
    earlier step until it joins another view: so each that was in ``newest``, and has its state yet, bounds what was saved there. Of what
    was saved in older views, later steps than ``newest`` began with do not count: see :mod:`lmj_operator.plan.membership.strays`.
    """
    members = {m.rank: m for m in newest.members}
    if any(rank >= len(ranks) for rank in members) or not newest.is_in(topology.stages):
        return None
    steps = []
    for rank in topology.among(members).writers:
        facts, mine = ranks[rank], members[rank]
        worker = facts.worker
        if worker is None or worker.holding is None or facts.pod is None or facts.pod.name != mine.pod:
            continue
        # One that has yet to join ``newest``, for all that is known, may commit in it meanwhile.
        if worker.incarnation != mine.incarnation or worker.view >= newest.number:
            steps.append(worker.holding.step)
    return max(newest.resume.step, min(steps)) if steps else None


def to_wait_for(
    topology: Topology,
    ranks: tuple[RankFacts, ...],
    newest: View | None,
    pods: tuple[PodObserved, ...],
    saved: CheckpointInfo | None,
    resume: Resume,
    since: float | None,
    now: float,
) -> Wait | None:
    """What the view after ``newest`` waits for, which starts from ``resume`` by what is known; None: nothing, it does.

    ``since``: the stored :attr:`Wait.since`. A look is waited for without an end only where storage is needed anyway: what is in memory is
    not enough, or is behind a checkpoint that is known.
    """
    enough = resume.snapshot and (saved is None or saved.step <= resume.step)
    asked = None
    if newest is not None:
        bound = newest_possible(topology, ranks, newest)
        if enough and bound is not None and resume.step >= bound:
            return None
        saver = last_saver(topology, ranks, pods, now)
        if saver is not None:
            return Wait(f"waits for {saver[0]}, which ends and may save a checkpoint yet", due=saver[1])
        asked = look(topology, ranks, newest, pods, saved, now)
        if asked is None:
            return Wait("waits for rank 0 to look through the checkpoints again")
    since = min(since, now) if since is not None else now
    left = since + LOOK_SECONDS - now
    if left > 0:
        return Wait(f"waits for rank 0 to look through the checkpoints{' again' if newest else ''}", asked, left, since)
    if enough:
        return None
    pod = ranks[FIRST].pod
    where = pod.name if pod is not None else "rank 0's pod"
    reason = (
        f"waits for the checkpoints, which {where} could not look through within {LOOK_SECONDS:g} s, and memory is not enough"
    )
    return Wait(f"{reason}: can it read checkpoint.path (by default in output.path)?", asked, since=since)


def early_look(
    topology: Topology,
    ranks: tuple[RankFacts, ...],
    newest: View | None,
    pods: tuple[PodObserved, ...],
    saved: CheckpointInfo | None,
    now: float,
) -> Look | None:
    """A :func:`look` while a rank's first worker in another pod than in ``newest`` is not ready yet.

    What the rank had in memory is gone, so a checkpoint may be needed. Asked for now, nobody waits for it.
    """
    if newest is None:
        return None
    if _may_join(ranks[FIRST], newest):
        return None
    members = {m.pod for m in newest.members}
    new = [f for f in ranks if f.incarnation == 1 and f.pod is not None and f.pod.name not in members]
    if not any(f.worker is None or f.worker.phase is WorkerPhase.STARTING for f in new):
        return None
    return look(topology, ranks, newest, pods, saved, now)


def _may_join(first: RankFacts, newest: View) -> bool:
    """Whether rank 0's worker is a member of ``newest`` and has not been in it yet: it may be by now."""
    mine, worker = newest.members[0], first.worker
    if first.pod is None or worker is None or (first.pod.name, worker.incarnation) != (mine.pod, mine.incarnation):
        return False
    return first.in_phase(WorkerPhase.READY) and worker.view < newest.number
