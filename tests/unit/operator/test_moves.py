"""What is done for ranks that are to run elsewhere."""

import pytest
from tests.unit.operator.seen import facts, follower, move, observed, pod, view, worker

from lmj_api.protocol import WorkerPhase
from lmj_api.status import JobStatus, MoveCause
from lmj_operator.plan import CreatePod, HandOver
from lmj_operator.plan.moves.moves import off_their_nodes, plan_moves


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
