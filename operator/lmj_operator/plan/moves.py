"""Ranks that are to run elsewhere: who asks, how far each is, and when its follower takes its place."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmj_api.protocol import WorkerPhase
from lmj_api.spec.migration import Migration, MigrationStrategy, MigrationTimeout
from lmj_api.status import Incident, MoveStatus
from lmj_api.view import View
from lmj_operator.plan.actions import Action, CreatePod, Drain, HandOver
from lmj_operator.plan.facts import RankFacts
from lmj_operator.plan.following import is_level
from lmj_operator.plan.membership import left
from lmj_operator.plan.observed import Observed, PodObserved
from lmj_operator.plan.times import rfc3339

FOLLOWER_SECONDS = 2.0
"""A view that was left for a follower waits for that one so long; then it goes on with the members that it had."""

MOVED = "Moved"
"""Kind of the incident that a move is recorded as."""

ASKED = "it was asked for"
"""Reason of a move that no node is the reason of."""

KEPT = 10
"""Incidents that are kept, as of failures."""


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves that there are now."""

    moves: tuple[MoveStatus, ...]
    request: str | None
    """As in the status."""
    actions: tuple[Action, ...] = ()
    ranks: frozenset[int] = frozenset()
    """Those that are under way; the others wait for their turn."""


def parse_request(text: str, ranks: int) -> tuple[int, ...]:
    """The ranks that the request names, each once. Raises ValueError with a line for people."""
    words = text.split()
    try:
        found = tuple(dict.fromkeys(int(word) for word in words[0].split(","))) if words else ()
    except ValueError:
        found = ()
    if not found or not all(0 <= rank < ranks for rank in found):
        raise ValueError(f"{text[:60]!r} names no ranks to move: write ranks from 0 to {ranks - 1}, as in 0,1")
    return found


def with_handed_over(observed: Observed, ranks: tuple[RankFacts, ...], view: View | None) -> tuple[RankFacts, ...]:
    """``ranks``, with the follower in the place of each rank that has left ``view`` for it."""
    moving = {move.rank for move in observed.status.moves if move.given_up is None}
    return tuple(_handed_over(f, view) if view is not None and f.rank in moving else f for f in ranks)


def _handed_over(facts: RankFacts, view: View) -> RankFacts:
    follower, entry, worker = facts.follower, facts.entry, facts.worker
    if follower is None or entry is None or worker is None or not is_level(follower) or not left(facts, view):
        return facts
    assert follower.agent is not None
    if follower.agent.worker.phase is not WorkerPhase.READY or follower.agent.worker.holding != worker.holding:
        return facts
    return replace(
        facts,
        serial=entry.serial,
        pod=follower,
        seen=True,
        incarnation=follower.agent.worker.incarnation,
        next_serial=max(facts.next_serial, entry.serial + 1),
        entry=None,
        follower=None,
    )


def handing_over(ranks: tuple[RankFacts, ...], view: View | None) -> bool:
    """Whether ``view`` was left for a follower to take its place: nobody's failure."""
    if view is None or not any(f.agent is not None and f.agent.handover >= view.number for f in ranks):
        return False
    gone = [f.worker for f in ranks if left(f, view)]
    return bool(gone) and all(worker is not None and worker.lost_rank is None for worker in gone)


def follower_wait(observed: Observed, ranks: tuple[RankFacts, ...], view: View | None, now: float) -> float | None:
    """Seconds for which a rank that left ``view`` may wait for its follower to be there; None: none does, or it has waited enough."""
    moving = {move.rank for move in observed.status.moves if move.given_up is None}
    since = [
        f.worker.since
        for f in ranks
        if f.rank in moving and f.worker is not None and view is not None and left(f, view) and f.follower is not None
    ]
    wait = min(since, default=0.0) + FOLLOWER_SECONDS - now
    return wait if since and 0 < wait <= FOLLOWER_SECONDS else None


def move(observed: Observed, ranks: tuple[RankFacts, ...], view: View | None, runs: bool, now: float) -> Moves:
    """The moves that are wanted at ``now``; ``runs``: ``view`` trains."""
    spec, status = observed.spec.migration, observed.status
    serials = {f.rank: f.serial for f in ranks}
    kept = [m for m in status.moves if serials.get(m.rank) == m.serial and not _may_stay(m, ranks[m.rank].pod)]
    request = observed.move_request
    if request is not None and request != status.move_request:
        kept += _requested(request, ranks, kept, now)
    known = {m.rank for m in kept}
    if spec.on_cordon is MigrationStrategy.LIVE and spec.strategy is MigrationStrategy.LIVE:
        kept += [_begun(f, f.pod.node_leaving, now) for f in ranks if f.rank not in known and _must_leave(f.pod)]  # type: ignore[union-attr,arg-type]
    moves: list[MoveStatus] = []
    actions: list[Action] = []
    turns = {(m.rank, m.serial) for m in _in_turn(status.moves, spec)}
    for entry in kept:
        facts = ranks[entry.rank]
        if entry.given_up is None and len(_in_turn(moves, spec)) < spec.max_concurrent:
            if (entry.rank, entry.serial) not in turns:
                entry = entry.model_copy(update={"since": now})  # its time begins with its turn
            if now - entry.since > spec.timeout_seconds:
                entry = _given_up(entry, spec)
        moves.append(entry)
        if entry.given_up is not None and spec.on_timeout is MigrationTimeout.CHECKPOINT and _is_there(facts):
            # Until it has heard of it: what was stored may be all that this operator's predecessor could do.
            assert facts.pod is not None
            actions.append(Drain(facts.pod.name))
    under_way = _in_turn(moves, spec)
    for entry in under_way:
        facts = ranks[entry.rank]
        ready = facts.entry is not None and facts.entry.state == "Level" and facts.pod is not None
        if runs and view is not None and ready and facts.agent is not None and facts.agent.handover < view.number:
            assert facts.pod is not None
            actions.append(HandOver(facts.pod.name, view.number))
    return Moves(
        tuple(moves),
        request if request is not None else status.move_request,
        tuple(actions),
        frozenset(m.rank for m in under_way),
    )


def leaving(actions: tuple[Action, ...], moves: Sequence[MoveStatus]) -> tuple[Action, ...]:
    """``actions``, with a moving rank's new pod not on the node that it leaves."""
    nodes = {m.rank: m.node for m in moves if m.given_up is None and m.node is not None}
    return tuple(
        replace(a, avoid=tuple(sorted({*a.avoid, nodes[a.rank]}))) if isinstance(a, CreatePod) and a.rank in nodes else a
        for a in actions
    )


def _requested(text: str, ranks: tuple[RankFacts, ...], known: Sequence[MoveStatus], now: float) -> list[MoveStatus]:
    try:
        wanted = parse_request(text, len(ranks))
    except ValueError:
        return []
    busy = {m.rank for m in known if m.given_up is None}
    return [_begun(ranks[rank], ASKED, now) for rank in wanted if rank not in busy]


def _may_stay(entry: MoveStatus, pod: PodObserved | None) -> bool:
    """Whether what the move is made for is over: its node was uncordoned. When it is cordoned again, that is another move."""
    return entry.reason != ASKED and pod is not None and pod.node == entry.node and pod.node_leaving is None


def _must_leave(pod: PodObserved | None) -> bool:
    return pod is not None and pod.node_leaving is not None


def _begun(facts: RankFacts, reason: str, now: float) -> MoveStatus:
    node = facts.pod.node if facts.pod is not None else facts.known.node
    return MoveStatus(rank=facts.rank, serial=facts.serial, node=node, reason=reason, since=now)


def _in_turn(moves: Sequence[MoveStatus], spec: Migration) -> list[MoveStatus]:
    return [m for m in moves if m.given_up is None][: spec.max_concurrent]


def _is_there(facts: RankFacts) -> bool:
    """Whether the rank's pod can be told to leave, and was not."""
    return facts.agent is not None and not facts.agent.draining


def _given_up(entry: MoveStatus, spec: Migration) -> MoveStatus:
    then = "it moves through a checkpoint" if spec.on_timeout is MigrationTimeout.CHECKPOINT else "it stays"
    text = f"no follower was level within {spec.timeout_seconds:g} s (migration.timeoutSeconds): {then}"
    return entry.model_copy(update={"given_up": text})


def moved(
    incidents: list[Incident], before: tuple[RankFacts, ...], after: tuple[RankFacts, ...], view: View, step: int, now: float
) -> tuple[list[Incident], int]:
    """``incidents`` with the moves that end now, and how many they are."""
    new = []
    for old, fresh in zip(before, after, strict=True):
        if fresh is old or old.pod is None or fresh.pod is None:
            continue
        where = f" on {fresh.pod.node}" if fresh.pod.node is not None else ""
        new.append(
            Incident(
                time=rfc3339(now),
                kind=MOVED,
                rank=old.rank,
                pod=old.pod.name,
                node=old.pod.node,
                message=f"rank {old.rank} moved from {old.pod.name} to {fresh.pod.name}{where}",
                view=view.number,
                step=step,
            )
        )
    return [*incidents, *new][-KEPT:], len(new)
