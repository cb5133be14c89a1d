"""Ranks that are to run elsewhere: who asks, in which way each goes, and when its follower takes its place."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lmj_api.spec import AccessMode
from lmj_api.spec.migration import Migration, MigrationStrategy, MigrationTimeout
from lmj_api.status import JobStatus, MoveCause, MoveStatus
from lmj_api.view import View
from lmj_operator.plan.actions import Action, CreatePod, Drain, HandOver, Stay
from lmj_operator.plan.failures.nodes import UNSCHEDULABLE
from lmj_operator.plan.failures.stragglers import Stragglers
from lmj_operator.plan.moves.moved import rests
from lmj_operator.plan.moves.request import MOST_MOVES, admit
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import Observed, PodObserved
from lmj_operator.plan.report.report import is_stale

CHECKPOINT_SECONDS = 10.0
"""Before its node is taken away, a rank without a follower that is in sync leaves through a checkpoint."""


@dataclass(frozen=True, slots=True)
class _Why:
    """Why a rank is to leave its pod, and how."""

    cause: MoveCause
    reason: str
    strategy: MigrationStrategy


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves that there are now."""

    moves: tuple[MoveStatus, ...]
    request: str | None
    """As in the status."""
    refused: str | None
    """As in the status."""
    actions: tuple[Action, ...] = ()
    targets: tuple[tuple[int, str | None], ...] = ()
    """Ranks that need a follower for it, each with the node that it is to be on (None: any)."""
    begun: frozenset[int] = frozenset()
    """Ranks whose move begins now because they are slow."""


_NONE_SLOW = Stragglers()

_UNFORCED = (MoveCause.REQUESTED, MoveCause.STRAGGLER)
"""The rank may stay where it is, too: nothing about its pod or its node is a reason to leave."""


def plan_moves(
    observed: Observed,
    ranks: tuple[RankFacts, ...],
    view: View | None,
    runs: bool,
    now: float,
    stragglers: Stragglers = _NONE_SLOW,
) -> Moves:
    """The moves that are wanted at ``now``; ``runs``: ``view`` trains."""
    spec, status = observed.spec.migration, observed.status
    kept = _newest([m for m in status.moves if _goes_on(m, ranks, spec, now) and not _is_over(m, ranks, stragglers)])
    request, refused = status.move_request, status.move_refused
    if observed.move_request is not None and observed.move_request != request:
        request, refused = observed.move_request, None
        try:
            kept = _with_requested(kept, request, ranks, observed, now)
        except ValueError as error:
            refused = str(error)
    known = {m.rank for m in kept}
    free = [f for f in ranks if f.rank not in known and not _rests(f.pod, status, spec, now)]
    due = [_begun(f, why, observed, now) for f in free if (why := _cause(f.pod, spec)) is not None]
    caused = {m.rank for m in due}
    slow = [f for f in free if f.rank in stragglers.to_move and f.rank not in caused]
    due += [_begun(f, _Why(MoveCause.STRAGGLER, stragglers.to_move[f.rank], spec.strategy), observed, now) for f in slow]
    # Those that wait for room have the same cause in the next pass.
    due = due[: max(0, MOST_MOVES - sum(m.given_up is None for m in kept))]
    kept += due
    moves: list[MoveStatus] = []
    turns = {(m.rank, m.serial) for m in _in_turn(status.moves, spec)}
    begun = 0
    for entry in kept:
        if entry.given_up is None and begun < spec.max_concurrent:
            if (entry.rank, entry.serial) not in turns:
                entry = entry.model_copy(update={"since": now})  # its time begins with its turn
            if entry.strategy == "Live" and now - entry.since > spec.timeout_seconds:
                late = f"within {spec.timeout_seconds:g} s (migration.timeoutSeconds)"
                entry = _given_up(entry, ranks[entry.rank], spec, late)
        if entry.given_up is None and entry.strategy == "Live" and _goes_soon(ranks[entry.rank].pod, now):
            entry = _given_up(entry, ranks[entry.rank], spec, f"{CHECKPOINT_SECONDS:g} s before its node is taken away")
        begun += entry.given_up is None
        moves.append(entry)
    in_turn = _in_turn(moves, spec)
    under_way = [m for m in in_turn if m.strategy == "Live"]
    actions: list[Action] = []
    if runs and view is not None:
        actions += [Stay(pod) for m in under_way if (pod := _may_stay(ranks[m.rank])) is not None]
        # The end of a view for both reasons at once may come to a rank that is to leave as the one for a follower: then it would leave
        # when no view runs any more, with steps that no checkpoint has.
        if not any(f.agent is not None and f.agent.draining for f in ranks):
            actions += [HandOver(pod, view.number) for m in under_way if (pod := _replaceable(ranks[m.rank], view)) is not None]
        ends = any(isinstance(a, HandOver) for a in actions) or any(to_be_left(f, view) for f in ranks)
        if not ends and not is_stale(observed, ranks):  # else nobody could leave, and what is trained since would be lost
            first = {m.rank for m in in_turn}
            going = [m for m in moves if m.strategy == "Checkpoint" and (m.given_up is not None or m.rank in first)]
            # Until it has heard of it: what was stored may be all that this operator's predecessor could do.
            actions += [Drain(pod) for m in going if (pod := _told_to_leave(m, ranks[m.rank])) is not None]
    targets = tuple((m.rank, m.to) for m in under_way)
    return Moves(
        tuple(moves), request, refused, tuple(actions), targets, frozenset(m.rank for m in due if m.cause is MoveCause.STRAGGLER)
    )


def off_their_nodes(actions: tuple[Action, ...], moves: Sequence[MoveStatus]) -> tuple[Action, ...]:
    """``actions``, with a moving rank's new pod not on the node that it leaves, and on the one that it is to be on."""
    going = {m.rank: m for m in moves if m.given_up is None or m.strategy == "Checkpoint"}
    return tuple(
        _placed(a, going[a.rank]) if isinstance(a, CreatePod) and a.rank in going and a.serial > going[a.rank].serial else a
        for a in actions
    )


def overdue(moves: Iterable[MoveStatus], ranks: tuple[RankFacts, ...], spec: Migration, now: float) -> frozenset[int]:
    """Ranks that left their pod for a node that does not take the next one: any other has to do."""
    return frozenset(m.rank for m in moves if m.rank < len(ranks) and _overdue(m, ranks[m.rank], spec, now))


def _placed(action: CreatePod, entry: MoveStatus) -> CreatePod:
    node = entry.to if entry.strategy == "Checkpoint" else action.node
    # A pod may be deleted for its own sake: its node is as good as any.
    left = [entry.node] if entry.node is not None and entry.cause is not MoveCause.POD_DELETED else []
    avoid = {*action.avoid, *left} - {node}
    return replace(action, avoid=tuple(sorted(avoid)), node=node)


def _with_requested(
    kept: list[MoveStatus], text: str, ranks: tuple[RankFacts, ...], observed: Observed, now: float
) -> list[MoveStatus]:
    """``kept`` with what the request ``text`` asks for; one for another node takes the place of a live move. Raises ValueError."""
    spec = observed.spec.migration
    request = admit(text, ranks, spec, observed.one_node, observed.nodes)
    asked_for = frozenset(request.ranks)
    stays = [
        m
        for m in kept
        if m.rank not in asked_for
        or m.strategy == "Checkpoint"
        or (m.given_up is None and (request.node is None or m.to == request.node))
    ]
    busy = {m.rank for m in stays}
    asked = _Why(MoveCause.REQUESTED, "it was asked for", spec.strategy)
    return stays + [_begun(ranks[r], asked, observed, now, request.node) for r in request.ranks if r not in busy]


def _goes_on(entry: MoveStatus, ranks: tuple[RankFacts, ...], spec: Migration, now: float) -> bool:
    """Whether what the move is made for is still wanted: its node may be uncordoned. When it is cordoned again, that is another move."""
    if entry.rank >= len(ranks):
        return False
    facts = ranks[entry.rank]
    pod = facts.pod
    if entry.strategy == "Checkpoint":
        if facts.serial != entry.serial:
            # It left. How the next pod is placed matters until a node has it.
            return (pod is None or pod.node is None) and not _overdue(entry, facts, spec, now)
        if facts.agent is not None and facts.agent.draining:
            return True
        if spec.strategy is MigrationStrategy.NEVER:
            return False
    elif facts.serial != entry.serial or spec.strategy is MigrationStrategy.NEVER:
        return False
    elif entry.cause in _UNFORCED and entry.given_up is not None:
        return _cause(pod, spec) is None  # that it was not to be had then is no reason to stay where the rank may not
    if entry.cause in _UNFORCED or pod is None or pod.node != entry.node:
        return True
    # Another placement is another move: its time starts over, and one that was given up has another chance.
    return _cause(pod, spec) is not None and (pod.leaves or pod.node_leaving is not None or pod.misplaced == entry.reason)


def _is_over(entry: MoveStatus, ranks: tuple[RankFacts, ...], stragglers: Stragglers) -> bool:
    """Whether the move was made for a slow rank that is well again where it is, or has another chance to move."""
    facts = ranks[entry.rank]
    if entry.cause is not MoveCause.STRAGGLER or facts.serial != entry.serial or _is_leaving(facts):
        return False
    return entry.rank not in stragglers.slow or (entry.given_up is not None and entry.rank in stragglers.to_move)


def _is_leaving(facts: RankFacts) -> bool:
    """Whether it was told to leave its pod: that is not taken back."""
    return facts.agent is not None and facts.agent.draining


def _rests(pod: PodObserved | None, status: JobStatus, spec: Migration, now: float) -> bool:
    leaves = pod is not None and pod.leaves
    return not leaves and rests(pod, status.incidents, spec.timeout_seconds, now)


def _overdue(entry: MoveStatus, facts: RankFacts, spec: Migration, now: float) -> bool:
    waits = facts.pod.waits if facts.pod is not None else None
    left = entry.strategy == "Checkpoint" and entry.to is not None and facts.serial != entry.serial
    return left and waits is not None and waits.reason == UNSCHEDULABLE and now - entry.since > spec.timeout_seconds


def _cause(pod: PodObserved | None, spec: Migration) -> _Why | None:
    """Why a rank is to leave ``pod`` without being asked to, and how; None: it stays."""
    if pod is None or spec.strategy is MigrationStrategy.NEVER:
        return None
    if pod.leaves and spec.strategy is MigrationStrategy.LIVE:
        return _Why(MoveCause.POD_DELETED, "its pod was told to end", spec.strategy)
    if pod.node_leaving is not None and spec.off_nodes is not MigrationStrategy.NEVER:
        return _Why(MoveCause.NODE, pod.node_leaving, spec.off_nodes)
    return _Why(MoveCause.PLACEMENT, pod.misplaced, spec.strategy) if pod.misplaced is not None else None


def _begun(facts: RankFacts, why: _Why, observed: Observed, now: float, to: str | None = None) -> MoveStatus:
    node = facts.pod.node if facts.pod is not None else facts.known.node
    how, given_up = why.strategy.value, None
    assert how != "Never"
    # The next pod of one that is told to end may be on its node.
    if how == "Live" and why.cause is not MoveCause.POD_DELETED and _is_bound(observed):
        if observed.spec.migration.on_timeout is MigrationTimeout.STAY:
            given_up = "its output volume is for one node at a time (storage.output.accessMode): it stays (migration.onTimeout)"
        else:
            how = "Checkpoint"
    return MoveStatus(
        rank=facts.rank,
        serial=facts.serial,
        node=node,
        to=to,
        strategy=how,
        cause=why.cause,
        reason=why.reason,
        since=now,
        given_up=given_up,
    )


def _is_bound(observed: Observed) -> bool:
    """Whether a follower on another node would wait for the output volume, which its source has."""
    spec, volume = observed.spec, observed.spec.storage.output
    once = (AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_ONCE_POD)
    return not observed.one_node and volume is not None and volume.mode(spec.most_ranks) in once


def _newest(moves: Sequence[MoveStatus]) -> list[MoveStatus]:
    """``moves`` without the oldest of many that were given up for good: where their cause is still there, they have another chance."""
    stays = [(m.rank, m.serial) for m in moves if m.given_up is not None and m.strategy == "Live"]
    over = frozenset(stays[: max(0, len(stays) - MOST_MOVES)])
    return [m for m in moves if (m.rank, m.serial) not in over]


def _in_turn(moves: Sequence[MoveStatus], spec: Migration) -> list[MoveStatus]:
    return [m for m in moves if m.given_up is None][: spec.max_concurrent]


def _may_stay(facts: RankFacts) -> str | None:
    """The rank's pod, when it was told to end and waits to hear that it may stay."""
    if facts.pod is None or facts.agent is None or not facts.pod.leaves or facts.agent.staying:
        return None
    return facts.pod.name


def _replaceable(facts: RankFacts, view: View) -> str | None:
    """The rank's pod, when its follower is in sync and it was not told to leave ``view`` for it."""
    in_sync = facts.entry is not None and facts.entry.state == "InSync"
    if not in_sync or facts.pod is None or facts.agent is None or facts.agent.handover >= view.number:
        return None
    return facts.pod.name


def to_be_left(facts: RankFacts, view: View) -> bool:
    """Whether the rank was told to leave ``view`` for its followers, and may at the next boundary, or has just done so."""
    if facts.agent is None or facts.agent.handover < view.number:
        return False
    # A source that hands over has no follower any more, an instant before it is known to have left.
    followed = facts.agent.follower is not None or facts.agent.recut is not None
    return followed or (facts.entry is not None and facts.entry.state == "InSync")


def _told_to_leave(entry: MoveStatus, facts: RankFacts) -> str | None:
    """The rank's pod, when it is the one that is to leave and it was not told yet."""
    if facts.serial != entry.serial or facts.pod is None or facts.agent is None or facts.agent.draining:
        return None
    return facts.pod.name


def _goes_soon(pod: PodObserved | None, now: float) -> bool:
    """Whether the node of ``pod`` is taken away before a follower could take its place."""
    return pod is not None and pod.node_goes_at is not None and now > pod.node_goes_at - CHECKPOINT_SECONDS


def _given_up(entry: MoveStatus, facts: RankFacts, spec: Migration, when: str) -> MoveStatus:
    late = f"no follower was in sync {when}"
    waits = facts.follower.waits if facts.follower is not None else None
    if spec.on_timeout is MigrationTimeout.STAY:
        return entry.model_copy(update={"given_up": f"{late}: it stays"})
    if waits is not None and (facts.pod is None or facts.pod.node_leaving is None):
        # Another pod would wait for the same, and training with it.
        return entry.model_copy(update={"given_up": f"{late} because its pod waits ({waits.reason}: {waits.message}): it stays"})
    return entry.model_copy(update={"given_up": f"{late}: it moves through a checkpoint", "strategy": "Checkpoint"})
