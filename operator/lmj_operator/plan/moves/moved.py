"""Ranks whose place another pod takes, and nobody failed: their follower, or the next pod when theirs left through a checkpoint.

And those whose worker failed alone, whose follower has what the next worker has not.
"""

from collections.abc import Sequence
from dataclasses import replace

from lmj_api.protocol import Copied, WorkerPhase
from lmj_api.status import Incident, IncidentKind
from lmj_api.topology import Topology
from lmj_api.view import View
from lmj_operator.plan.failures.incidents import newest
from lmj_operator.plan.membership.common_step import MEMORY_TRIES, lacking
from lmj_operator.plan.membership.membership import left
from lmj_operator.plan.observe.facts import RankFacts, in_sync
from lmj_operator.plan.observe.observed import Observed, PodObserved
from lmj_operator.plan.observe.times import epoch_seconds, rfc3339
from lmj_operator.plan.report.report import step_seconds

FOLLOWER_SECONDS = 2.0
"""A view that was left for a follower waits for that one so long; then it goes on with the members that it had."""

FIRST_REST_SECONDS = 15.0
"""So long a pod stays where it is when the job has moved one rank of late; twice as long for each more."""


def with_handed_over(observed: Observed, ranks: tuple[RankFacts, ...], view: View | None) -> tuple[RankFacts, ...]:
    """``ranks``, with the follower in the place of each rank that has left ``view`` for it."""
    moving = _moving(observed)
    stateless = observed.spec.strategy.stateless
    return tuple(_handed_over(f, view, stateless) if view is not None and f.rank in moving else f for f in ranks)


def with_left(observed: Observed, ranks: tuple[RankFacts, ...]) -> tuple[RankFacts, ...]:
    """``ranks``, with the pod of each outdated that was asked to leave through a checkpoint, and did."""
    leaving = {(m.rank, m.serial) for m in observed.status.moves if m.strategy == "Checkpoint"}
    return tuple(
        replace(f, pod=replace(f.pod, outdated=True))
        if f.pod is not None and f.in_phase(WorkerPhase.DRAINED) and (f.rank, f.serial) in leaving
        else f
        for f in ranks
    )


def with_kept(topology: Topology, ranks: tuple[RankFacts, ...], tries: int) -> tuple[RankFacts, ...]:
    """``ranks``, with the follower in the place of each whose new worker has nothing in memory, when all can go on from memory so.

    So it is on a GPU, where the state goes with the process. ``tries``: as of :func:`common_step`.
    """
    after = tuple(
        f.in_follower() if _is_empty(f) and f.entry is not None and f.follower is not None and in_sync(f.follower) else f
        for f in ranks
    )
    if tries > MEMORY_TRIES or not all(f.in_phase(WorkerPhase.READY, WorkerPhase.FOLLOWING) for f in after):
        return ranks
    known = {f.rank: f.worker.holding for f in after if f.worker is not None and f.in_phase(WorkerPhase.READY)}
    # One that has not heard yet that its source is gone says what it has when it was told to leave: until then it counts as the newest.
    newest = max((held for held in known.values() if held is not None), key=lambda held: held.step, default=None)
    holdings = [known.get(f.rank, newest) for f in after]
    return after if not known or lacking(topology, holdings) is None else ranks


def _is_empty(facts: RankFacts) -> bool:
    return facts.worker is not None and facts.in_phase(WorkerPhase.READY) and facts.worker.holding is None


def _moving(observed: Observed) -> set[int]:
    """Ranks that move to a follower."""
    return {move.rank for move in observed.status.moves if move.given_up is None and move.strategy == "Live"}


def _handed_over(facts: RankFacts, view: View, stateless: bool) -> RankFacts:
    follower, worker = facts.follower, facts.worker
    if (
        follower is None
        or facts.entry is None
        or worker is None
        or not in_sync(follower, stateless=stateless)
        or not left(facts, view)
    ):
        return facts
    assert follower.agent is not None
    if follower.agent.worker.phase is not WorkerPhase.READY or follower.agent.worker.holding != worker.holding:
        return facts
    return facts.in_follower()


def rests(pod: PodObserved | None, incidents: Sequence[Incident], longest: float, now: float) -> bool:
    """Whether ``pod`` is so new that nothing but a request moves its rank again: where the job moved much of late, the next node may be
    no better than this one, as when all are about to be taken away and the pods tolerate it. At most ``longest`` seconds.

    A rank's first pod has not moved.
    """
    if pod is None or pod.serial == 1 or now - pod.created >= longest:
        return False
    moves = sum(i.kind is IncidentKind.MOVED and now - epoch_seconds(i.time) < 10 * longest for i in incidents)
    return moves > 0 and now - pod.created < min(FIRST_REST_SECONDS * 2.0**moves, longest)


def handing_over(ranks: tuple[RankFacts, ...], view: View | None) -> bool:
    """Whether ``view`` was left for another with other members: nobody's failure."""
    if view is None or not any(f.agent is not None and max(f.agent.handover, f.agent.pause) >= view.number for f in ranks):
        return False
    gone = [f.worker for f in ranks if left(f, view)]
    return bool(gone) and all(worker is not None and worker.lost_rank is None for worker in gone)


def follower_wait(
    observed: Observed, ranks: tuple[RankFacts, ...], view: View | None, since: float | None, now: float
) -> float | None:
    """Seconds for which a rank that left ``view`` may wait for its follower to be there; None: none does, or it has waited enough.

    ``since``: when it was first seen that ``view`` was left.
    """
    moving = _moving(observed)
    waits = view is not None and any(f.rank in moving and f.follower is not None and left(f, view) for f in ranks)
    if not waits or since is None or now - since >= FOLLOWER_SECONDS:
        return None
    return since + FOLLOWER_SECONDS - now


def moved(
    observed: Observed,
    before: tuple[RankFacts, ...],
    after: tuple[RankFacts, ...],
    view: View | None,
    step: int,
    now: float,
) -> tuple[list[Incident], int]:
    """The incidents that are known, with the moves that end now, and how many these are."""
    pace = step_seconds(observed.status.progress, observed.spec.training)
    new = []
    for old, fresh in zip(before, after, strict=True):
        if fresh is old or old.pod is None or fresh.pod is None:
            continue
        if fresh.pod.name == old.pod.name:
            message, copied = f"rank {old.rank} left {old.pod.name} through a checkpoint", None
        else:
            where = f" on {fresh.pod.node}" if fresh.pod.node is not None else ""
            message = f"rank {old.rank} moved from {old.pod.name} to {fresh.pod.name}{where}"
            copied = _copied(observed, old, fresh)
        new.append(
            Incident(
                time=rfc3339(now),
                kind=IncidentKind.MOVED,
                rank=old.rank,
                pod=old.pod.name,
                node=old.pod.node,
                message=message,
                view=view.number if view is not None else 0,
                step=step,
                step_seconds=pace,
                copied=copied,
            )
        )
    return newest([*observed.status.incidents, *new]), len(new)


def _copied(observed: Observed, old: RankFacts, fresh: RankFacts) -> Copied | None:
    """What was copied for the move that puts ``fresh`` in the place of ``old``."""
    copied = fresh.worker.copied if fresh.worker is not None else None
    since = min((move.since for move in observed.status.moves if move.rank == old.rank), default=0.0)
    if copied is not None and old.entry is not None and old.entry.state == "InSync" and old.entry.since < since:
        return copied.model_copy(update={"done": 0, "gradients": 0})  # a hot standby had all before
    return copied
