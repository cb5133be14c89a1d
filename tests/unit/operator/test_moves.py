"""What is done for ranks that are to run elsewhere."""

import pytest
from planned import job_spec
from tests.unit.operator.seen import facts, follower, move, observed, pod, view, worker

from lmj_api.protocol import WorkerPhase
from lmj_api.spec import Migration
from lmj_api.status import JobStatus, MoveCause
from lmj_operator.plan import CreatePod, HandOver, Observed
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
