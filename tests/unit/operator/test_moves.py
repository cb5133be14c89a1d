"""What is done for ranks that are to run elsewhere."""

from dataclasses import replace

import pytest
from tests.unit.operator.seen import facts, follower, move, observed, pod, view, worker

from lmj_api.protocol import WorkerPhase
from lmj_api.status import JobStatus, MoveCause, MoveStatus, StragglerStatus
from lmj_operator.plan import CreatePod, HandOver, PodObserved
from lmj_operator.plan.failures.stragglers import Stragglers
from lmj_operator.plan.moves.moves import Moves, off_their_nodes, plan_moves


@pytest.mark.parametrize(("told", "actions"), [(0, (HandOver("j-r1-1", 3),)), (2, (HandOver("j-r1-1", 3),)), (3, ())])
def test_a_view_is_handed_over_once(told: int, actions: tuple[HandOver, ...]) -> None:
    first, second = pod(0, 1, worker()), pod(1, 1, worker(), agent={"handover": told}, node="node-1")
    in_sync = pod(1, 2, worker(WorkerPhase.FOLLOWING), node="node-2")
    ranks = facts(0, first), facts(1, second, entry=follower(state="InSync"), follower=in_sync)
    seen = observed(first, second, in_sync, status=JobStatus(moves=[move(cause=MoveCause.REQUESTED)]))
    assert plan_moves(seen, ranks, view(first, second), runs=True, now=10.0).actions == actions


@pytest.mark.parametrize(
    ("strategy", "given_up", "avoid"),
    [
        ("Live", None, ("node-1",)),
        ("Live", "it stays", ()),
        ("Checkpoint", None, ("node-1",)),
        ("Checkpoint", "it leaves through a checkpoint", ("node-1",)),
    ],
)
def test_the_next_pod_of_a_rank_that_moves_is_on_another_node(
    strategy: str, given_up: str | None, avoid: tuple[str, ...]
) -> None:
    actions = off_their_nodes((CreatePod(0, 2), CreatePod(1, 2)), [move(strategy=strategy, given_up=given_up)])
    assert actions == (CreatePod(0, 2), CreatePod(1, 2, avoid=avoid))


def planned(*moves: MoveStatus, mine: PodObserved | None, stragglers: Stragglers, serial: int = 1) -> Moves:
    """Those of rank 1, whose pod is ``mine``."""
    first = pod(0, 1, worker())
    seen = observed(*filter(None, (first, mine)), status=JobStatus(moves=list(moves)))
    ranks = facts(0, first), facts(1, mine, serial=serial)
    return plan_moves(seen, ranks, None, runs=False, now=10.0, stragglers=stragglers)


def slow(rank: int, *, to_move: bool = False) -> Stragglers:
    entry = StragglerStatus(rank=rank, pod=f"j-r{rank}-1", since=1.0, slow=True)
    return Stragglers((entry,), {rank: "it is slow"} if to_move else {})


MINE = pod(1, 1, worker(), node="node-1")
DRAINING = pod(1, 1, worker(), agent={"draining": True}, node="node-1")


def test_a_slow_rank_begins_to_move_once() -> None:
    moves = planned(mine=MINE, stragglers=slow(1, to_move=True))
    (begun,) = moves.moves
    assert (begun.rank, begun.cause, begun.reason, begun.node) == (1, MoveCause.STRAGGLER, "it is slow", "node-1")
    assert moves.begun == {1}
    again = planned(begun, mine=MINE, stragglers=slow(1, to_move=True))
    assert (again.moves, again.begun) == ((begun,), frozenset())


def test_a_slow_rank_whose_node_is_left_moves_for_that() -> None:
    moves = planned(mine=replace(MINE, node_leaving="node-1 is cordoned"), stragglers=slow(1, to_move=True))
    assert ([m.cause for m in moves.moves], moves.begun) == ([MoveCause.NODE], frozenset())


@pytest.mark.parametrize(
    ("strategy", "given_up", "mine", "serial", "stragglers", "goes_on"),
    [
        ("Live", None, MINE, 1, slow(1), True),
        ("Live", None, MINE, 1, slow(0), False),
        ("Live", "it stays", MINE, 1, slow(1), True),
        ("Live", "it stays", MINE, 1, slow(0), False),
        ("Checkpoint", None, MINE, 1, slow(1), True),
        ("Checkpoint", None, MINE, 1, slow(0), False),
        # It was told to leave: its next pod is not a failure's, and is to be on another node.
        ("Checkpoint", None, DRAINING, 1, slow(0), True),
        ("Checkpoint", None, None, 2, slow(0), True),
    ],
)
def test_a_rank_that_is_not_slow_any_more_stays_unless_it_has_left(
    strategy: str, given_up: str | None, mine: PodObserved | None, serial: int, stragglers: Stragglers, goes_on: bool
) -> None:
    known = move(strategy=strategy, given_up=given_up, cause=MoveCause.STRAGGLER)
    assert bool(planned(known, mine=mine, serial=serial, stragglers=stragglers).moves) is goes_on


@pytest.mark.parametrize("cause", [MoveCause.STRAGGLER, MoveCause.REQUESTED])
def test_a_move_that_was_given_up_keeps_no_rank_on_a_node_that_is_left(cause: MoveCause) -> None:
    known = move(given_up="it stays", cause=cause)
    moves = planned(known, mine=replace(MINE, node_leaving="node-1 is cordoned"), stragglers=slow(1))
    assert [(m.cause, m.given_up) for m in moves.moves] == [(MoveCause.NODE, None)]


def test_a_move_that_was_given_up_has_another_chance() -> None:
    known = move(given_up="it stays", cause=MoveCause.STRAGGLER)
    moves = planned(known, mine=MINE, stragglers=slow(1, to_move=True))
    assert ([m.given_up for m in moves.moves], moves.begun) == ([None], {1})
