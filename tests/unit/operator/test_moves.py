"""What is done for ranks that are to run elsewhere."""

from dataclasses import replace

import pytest
from planned import job_spec
from tests.unit.operator.seen import facts, follower, move, observed, pod, view, worker

from lmj_api.protocol import WorkerPhase
from lmj_api.spec import Migration
from lmj_api.status import JobStatus, MoveCause, MoveStatus, StragglerStatus
from lmj_operator.plan import CreatePod, HandOver, Observed, PodObserved
from lmj_operator.plan.failures.stragglers import Stragglers
from lmj_operator.plan.moves.moves import Moves, off_their_nodes, plan_moves
from lmj_operator.plan.moves.request import MOST_MOVES, admit


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


MANY = 100
LARGE = {"pipeline": {"stages": 4, "microBatches": MANY // 4}, "training": {"batchSize": MANY // 4}}


def cordoned(status: JobStatus | None = None) -> Moves:
    """What is planned for a hundred ranks that are all on nodes that are to be left."""
    spec = job_spec(4, dataParallel={"shards": MANY // 4, "replicas": MANY // 4}, **LARGE)
    seen = [pod(rank, 1, worker(), node_leaving="it is cordoned", node=f"node-{rank}") for rank in range(MANY)]
    ranks = tuple(facts(rank, each) for rank, each in enumerate(seen))
    return plan_moves(Observed("j", spec, status or JobStatus(), tuple(seen)), ranks, view(*seen), runs=True, now=10.0)


def test_a_job_remembers_so_many_moves_and_begins_others_when_these_are_done() -> None:
    first = cordoned().moves
    assert [m.rank for m in first] == list(range(MOST_MOVES))
    left = [m.model_copy(update={"given_up": "it stays"}) if m.rank < 10 else m for m in first]
    after = cordoned(JobStatus(moves=left)).moves
    assert [m.rank for m in after] == list(range(MOST_MOVES + 10))
    assert sum(m.given_up is None for m in after) == MOST_MOVES


def test_of_many_that_were_given_up_for_good_the_oldest_are_tried_again() -> None:
    stay = [move(rank=rank, given_up="it stays", cause=MoveCause.NODE, node=f"node-{rank}") for rank in range(MOST_MOVES + 5)]
    leave = move(rank=90, given_up="it moves through a checkpoint", strategy="Checkpoint", node="node-90")
    after = cordoned(JobStatus(moves=[leave, *stay])).moves
    assert after[0].rank == 90, "it is under way"
    assert [m.rank for m in after if m.given_up == "it stays"] == list(range(5, MOST_MOVES + 5))
    assert {m.rank for m in after if m.given_up is None} >= set(range(5))


def test_a_request_names_no_more_ranks_than_are_remembered() -> None:
    ranks = tuple(facts(rank, pod(rank, 1, worker())) for rank in range(MANY))
    text = ",".join(map(str, range(MOST_MOVES)))
    assert len(admit(text, ranks, Migration(), one_node=False).ranks) == MOST_MOVES
    with pytest.raises(ValueError, match=f"names {MOST_MOVES + 1} ranks: ask for at most {MOST_MOVES}, and for the others when"):
        admit(f"{text},{MOST_MOVES}", ranks, Migration(), one_node=False)
