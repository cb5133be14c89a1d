"""What becomes of a follower when its source lets go of it, or when it does not start."""

import pytest
from tests.unit.operator.seen import facts, follower, pod, worker

from lmj_api.protocol import WorkerPhase
from lmj_api.spec import Recovery
from lmj_api.view import Member
from lmj_operator.plan import Action, DeletePod, Follow, LeaveView, PodPhase
from lmj_operator.plan.pods.following import Following, follow


def after(
    source: dict[str, object],
    *,
    phase: WorkerPhase = WorkerPhase.FOLLOWING,
    since: float = 90.0,
    number: int = 1,
    not_before: float = 0.0,
) -> Following:
    """One pass at 100 s over rank 1, which trains in view 3."""
    copies = pod(1, 2, worker(phase, since=since, incarnation=number, heartbeat=99.0, holding=None))
    entry = follower(state="Starting" if phase is WorkerPhase.STARTING else "Copying", not_before=not_before)
    if phase is WorkerPhase.READY:
        entry = entry.model_copy(update={"state": "Starting"})
    rank = facts(1, pod(1, 1, worker(), agent=source), entry=entry, follower=copies, next_serial=3)
    return follow("j", (rank,), {"1": 2}, {1: None}, Recovery(start_timeout_seconds=60), now=100.0)


@pytest.mark.parametrize(
    ("handover", "actions"),
    [
        (2, (LeaveView("j-r1-2", 3),)),
        (3, ()),  # the source ends the stream itself, when it has handed over
    ],
)
def test_a_follower_whose_source_let_go_of_it_is_told(handover: int, actions: tuple[Action, ...]) -> None:
    assert after({"handover": handover}).actions == actions


def test_a_follower_that_does_not_start_is_replaced() -> None:
    lost = after({}, phase=WorkerPhase.STARTING, since=39.0)
    assert lost.actions == (DeletePod("j-r1-2", "the follower is lost"),)
    assert [(e.serial, e.failures) for e in lost.entries] == [(3, 1)]


@pytest.mark.parametrize(("since", "number"), [(40.0, 1), (39.0, 0)])
def test_one_that_starts_or_was_not_told_to_yet_is_waited_for(since: float, number: int) -> None:
    starts = after({}, phase=WorkerPhase.STARTING, since=since, number=number)
    assert [e.serial for e in starts.entries] == [2]
    assert not any(isinstance(a, DeletePod) for a in starts.actions)


@pytest.mark.parametrize(
    ("phase", "not_before", "follows", "due"),
    [
        (WorkerPhase.READY, 100.0, True, ()),
        (WorkerPhase.READY, 101.0, False, (1.0,)),
        (WorkerPhase.FOLLOWING, 100.0, False, ()),
    ],
)
def test_one_that_is_ready_follows_when_its_pause_is_over(
    phase: WorkerPhase, not_before: float, follows: bool, due: tuple[float, ...]
) -> None:
    me = Member(rank=1, pod="j-r1-2", incarnation=1, address="a")
    source = {} if phase is WorkerPhase.READY else {"handover": 3}
    found = after(source, phase=phase, not_before=not_before)
    assert (found.actions, found.due) == ((Follow("j-r1-1", me),) if follows else (), due)


@pytest.mark.parametrize(("node", "again"), [(None, True), ("node-2", False)])
def test_one_that_no_node_has_taken_need_not_wait_for_the_node_that_was_asked_for(node: str | None, again: bool) -> None:
    waits = pod(1, 2, phase=PodPhase.PENDING, node=node, created=90.0)
    rank = facts(
        1, pod(1, 1, worker(), agent={"handover": 3}), entry=follower(state="Pending", to="node-2"), follower=waits, next_serial=3
    )
    found = follow("j", (rank,), {"1": 2}, {1: None}, Recovery(), now=100.0)
    assert [(e.serial, e.to) for e in found.entries] == [(3, None) if again else (2, "node-2")]
    assert [a.name for a in found.actions if isinstance(a, DeletePod)] == (["j-r1-2"] if again else [])
