"""The table of what may happen, and what each event does to the state."""

from typing import Any

import pytest
from planned import view_of_one

from lmj_api.cut import Cut
from lmj_api.fold import TRANSITIONS, IllegalEventError, fold, with_pid, with_scan
from lmj_api.protocol import (
    MOST_CHECKPOINTS,
    AgentState,
    CheckpointInfo,
    CheckpointTrouble,
    Copied,
    Evaluation,
    Event,
    EventKind,
    Exit,
    Holding,
    Progress,
    Recut,
    Snapshots,
    WorkerPhase,
    WorkerState,
)
from lmj_api.view import Member

K, P = EventKind, WorkerPhase
NOW = 100.0
PROGRESS = Progress(step=7, steps=10, epoch=0.7)
EVALUATION = Evaluation(
    split="validation", step=7, samples=4, loss=0.1, accuracy=0.5, f1=0.5, labels=["a", "b"], confusion=[[1, 1], [1, 1]]
)
DETAILS: dict[EventKind, dict[str, Any]] = {
    K.WORKER_STARTED: {"incarnation": 2},
    K.READY: {"address": "a:1"},
    K.JOINED: {"view": 3},
    K.COMMITTED: {"progress": PROGRESS},
    K.EVALUATED: {"evaluation": EVALUATION},
    K.CHECKPOINTED: {"checkpoint": CheckpointInfo(name="step-000000007", step=7)},
    K.LOST_PEER: {"view": 3, "message": "rank 1: reset"},
    K.WORKER_EXITED: {"exit": Exit(code=0, message="")},
}


def event(kind: EventKind, **details: Any) -> Event:
    return Event(time=NOW, kind=kind, **{**DETAILS.get(kind, {}), **details})


def state(phase: WorkerPhase | None, *, view: int = 2, **worker: Any) -> AgentState:
    """A living worker 1 in ``phase``; None: none was started."""
    accepted = view_of_one(5, reason="test")
    values = {"incarnation": 1, "phase": phase, "pid": 4, "view": view, "since": 1.0, "heartbeat": 1.0, **worker}
    return AgentState(pod="p", rank=0, started=0.0, view=accepted, worker=WorkerState(**values) if phase else WorkerState())


@pytest.mark.parametrize("before", TRANSITIONS)
def test_legal(before: WorkerPhase | None) -> None:
    for kind, phase in TRANSITIONS[before].items():
        after = fold(state(before), event(kind), NOW).worker
        assert after.phase is phase, kind
        moved = after.phase is not (before or P.STARTING) or kind in (K.WORKER_STARTED, K.LOST_PEER)
        assert after.since == (NOW if moved else 1.0), kind


@pytest.mark.parametrize("before", TRANSITIONS)
def test_illegal(before: WorkerPhase | None) -> None:
    for kind in set(K) - TRANSITIONS[before].keys():
        if before is None and kind is K.WARNING:
            assert fold(state(None), event(kind), NOW) == state(None)  # the agent's own
            continue
        with pytest.raises(IllegalEventError, match=f"{kind} cannot follow"):
            fold(state(before), event(kind), NOW)


@pytest.mark.parametrize("kind", [*DETAILS])
def test_what_an_event_must_carry(kind: EventKind) -> None:
    before = next(p for p in TRANSITIONS if kind in TRANSITIONS[p])
    with pytest.raises(IllegalEventError, match=f"{kind} without"):
        fold(state(before), Event(time=NOW, kind=kind), NOW)


@pytest.mark.parametrize(
    ("phase", "code", "after"),
    [
        (P.COMPLETED, 0, P.COMPLETED),
        (P.COMPLETED, 1, P.EXITED),
        (P.COMPLETED, -9, P.EXITED),
        (P.DRAINED, 0, P.DRAINED),
        (P.DRAINED, 1, P.EXITED),
        (P.RUNNING, 0, P.EXITED),
        (P.STARTING, 2, P.EXITED),
    ],
)
def test_exit(phase: WorkerPhase, code: int, after: WorkerPhase) -> None:
    ended = Exit(code=code, message="so")
    worker = fold(state(phase, address="a"), event(K.WORKER_EXITED, exit=ended), NOW).worker
    assert (worker.phase, worker.exit, worker.pid, worker.address) == (after, ended, None, None)


@pytest.mark.parametrize("phase", [P.COMPLETED, P.DRAINED, P.EXITED])
def test_the_next_worker_begins_anew(phase: WorkerPhase) -> None:
    gone = state(phase, exit=Exit(code=0, message=""), progress=PROGRESS, lost="x")
    worker = fold(gone, event(K.WORKER_STARTED), NOW).worker
    assert worker == WorkerState(incarnation=2, since=NOW, heartbeat=NOW)
    with pytest.raises(IllegalEventError, match="worker 1 started after worker 1"):
        fold(gone, event(K.WORKER_STARTED, incarnation=1), NOW)
    with pytest.raises(IllegalEventError, match="the end of the worker"):
        fold(gone, event(K.CHECKPOINTED), NOW)


def test_a_birth() -> None:
    started = fold(state(None), event(K.WORKER_STARTED), NOW)
    started = with_pid(started, 2, 77)
    assert started.worker == started.worker.model_copy(update={"pid": 77})
    ended = fold(started, event(K.WORKER_EXITED), NOW)
    for impossible, incarnation in ((started, 1), (started, 2), (ended, 2), (state(None), 0)):
        with pytest.raises(IllegalEventError, match="was started as process 78"):
            with_pid(impossible, incarnation, 78)


def test_joining() -> None:
    worker = fold(state(P.READY, lost="before"), event(K.JOINED, view=3, progress=PROGRESS), NOW).worker
    assert (worker.view, worker.lost, worker.progress, worker.phase) == (3, None, PROGRESS, P.RUNNING)
    with pytest.raises(IllegalEventError, match="joined view 2 after view 2"):
        fold(state(P.READY), event(K.JOINED, view=2), NOW)
    with pytest.raises(IllegalEventError, match="never told"):
        fold(state(P.READY), event(K.JOINED, view=6), NOW)


@pytest.mark.parametrize(("address", "stays"), [("a", False), (None, False), ("of one before", True)])
def test_the_loss_of_a_follower_is_of_that_one_alone(address: str | None, stays: bool) -> None:
    member = Member(rank=0, pod="p-2", incarnation=1, address="a")
    before = state(P.RUNNING).model_copy(update={"follower": member})
    assert fold(before, event(K.FOLLOWER_LOST, address=address), NOW).follower == (member if stays else None)


def test_how_far_a_copy_is_stays_known_until_the_next_view() -> None:
    copying = fold(state(P.READY), event(K.FOLLOWING, copied=Copied(done=1, size=2)), NOW)
    assert copying.worker.copied == Copied(done=1, size=2)
    over = fold(copying, event(K.LOST_PEER, copied=Copied(done=2, size=2)), NOW)
    assert over.worker.copied == Copied(done=2, size=2)
    assert fold(over, event(K.JOINED, view=4), NOW).worker.copied is None


@pytest.mark.parametrize("kind", [K.READY, K.LOST_PEER])
def test_what_is_in_memory_is_known_until_it_changes(kind: EventKind) -> None:
    held = Holding(step=7, prepared=True)
    before = state(P.STARTING if kind is K.READY else P.RUNNING)
    ready = fold(before, event(kind, holding=held), NOW)
    assert ready.worker.holding == held
    assert fold(ready, event(K.JOINED, view=4), NOW).worker.holding is None
    assert fold(before, event(kind), NOW).worker.holding is None


def test_a_lost_peer() -> None:
    worker = fold(state(P.RUNNING, view=3, progress=PROGRESS), event(K.LOST_PEER), NOW).worker
    assert (worker.phase, worker.view, worker.lost, worker.progress) == (P.READY, 3, "rank 1: reset", PROGRESS)
    # A view that broke while it formed was dropped too, or the plan would wait for it.
    forming = fold(state(P.READY, view=2), event(K.LOST_PEER, view=3), NOW).worker
    assert (forming.phase, forming.view, forming.since) == (P.READY, 3, NOW)
    late = state(P.RUNNING, view=4)
    assert fold(late, event(K.LOST_PEER, view=3), NOW) == late


def test_ready_clears_nothing_else() -> None:
    before = state(P.READY, lost="why", progress=PROGRESS)
    after = fold(before, event(K.READY, address="b:2"), NOW)
    assert after.worker == before.worker.model_copy(update={"address": "b:2", "heartbeat": NOW})


@pytest.mark.parametrize(
    ("kind", "beats"),
    [(K.PREPARING, True), (K.COMMITTED, True), (K.EVALUATED, True), (K.CHECKPOINTED, False), (K.WARNING, False)],
)
def test_heartbeat(kind: EventKind, beats: bool) -> None:
    assert fold(state(P.RUNNING), event(kind), NOW).worker.heartbeat == (NOW if beats else 1.0)


def test_evaluations() -> None:
    def told(subject: AgentState, split: str, step: int, accuracy: float, *, best: bool = False) -> AgentState:
        new = EVALUATION.model_copy(update={"split": split, "step": step, "accuracy": accuracy})
        return fold(subject, event(K.EVALUATED, evaluation=new, best=best), NOW)

    def kept(subject: AgentState) -> list[tuple[str, int]]:
        return [(e.split, e.step) for e in subject.evaluations]

    now = told(state(P.RUNNING), "validation", 1, 0.5, best=True)
    assert kept(now) == [("validation", 1)]
    now = told(now, "validation", 2, 0.4)
    assert kept(now) == [("validation", 2), ("validation", 1)]
    now = told(told(now, "test", 2, 0.9), "validation", 3, 0.5)
    assert kept(now) == [("validation", 3), ("validation", 1), ("test", 2)]
    now = told(now, "validation", 4, 0.6, best=True)
    assert kept(now) == [("validation", 4), ("test", 2)]
    assert kept(told(now, "test", 5, 0.1)) == [("validation", 4), ("test", 5)]


def test_checkpoints() -> None:
    def info(step: int, *, best: bool = False, problem: str | None = None) -> CheckpointInfo:
        return CheckpointInfo(name=f"step-{step:09d}", step=step, best=best, problem=problem)

    before = state(P.RUNNING).model_copy(update={"checkpoints": [info(30, problem="torn"), info(20, best=True), info(10)]})
    after = fold(before, event(K.CHECKPOINTED, checkpoint=info(25, best=True), removed=[info(10).name]), NOW)
    assert after.checkpoints == [info(30, problem="torn"), info(25, best=True), info(20)]
    again = fold(before, event(K.CHECKPOINTED, checkpoint=info(30)), NOW)
    assert again.checkpoints == [info(30), info(20, best=True), info(10)]
    # What the scan found is older than what workers told while it ran.
    scanned = with_scan(after, [info(40), info(25, problem="half-written"), info(10)], [info(25).name], [info(10).name], 7)
    # What it did not find, and nobody has told of since, is there no more.
    assert [c.step for c in scanned.checkpoints] == [40, 25]
    assert scanned.checkpoints[1].problem is None
    assert (scanned.scanned, scanned.looked) == (True, 7)


def test_of_very_many_checkpoints_the_newest_are_told() -> None:
    found = [CheckpointInfo(name=f"step-{step:09d}", step=step) for step in range(1, MOST_CHECKPOINTS + 3)]
    scanned = with_scan(state(P.RUNNING), found, [], [])
    assert [c.step for c in scanned.checkpoints] == list(range(MOST_CHECKPOINTS + 2, 2, -1))


def test_what_is_known_of_a_step_stays_known_while_it_is_exported() -> None:
    committed = fold(state(P.RUNNING), event(K.COMMITTED, progress=PROGRESS.model_copy(update={"loss": 0.5})), NOW)
    exporting = event(K.PREPARING, progress=PROGRESS.model_copy(update={"activity": "export"}))
    at = fold(committed, exporting, NOW).worker.progress
    assert at is not None
    assert (at.loss, at.activity) == (0.5, "export")
    later = event(K.PREPARING, progress=PROGRESS.model_copy(update={"step": 8}))
    after = fold(committed, later, NOW).worker.progress
    assert after is not None
    assert after.loss is None


def test_the_pause_before_a_view_is_kept_until_the_next() -> None:
    first = fold(state(P.RUNNING), event(K.COMMITTED, progress=PROGRESS, paused_seconds=0.15), NOW)
    later = fold(first, event(K.COMMITTED, progress=PROGRESS), NOW)
    assert (first.worker.paused_seconds, later.worker.paused_seconds) == (0.15, 0.15)
    assert fold(later, event(K.JOINED, view=3), NOW).worker.paused_seconds is None


def test_what_a_step_takes_is_that_of_the_newest_steps_of_the_view() -> None:
    first = fold(state(P.RUNNING), event(K.COMMITTED, progress=PROGRESS, compute_seconds=0.15, waiting_seconds=0.5), NOW)
    assert (first.worker.compute_seconds, first.worker.waiting_seconds) == (0.15, 0.5)
    again = fold(first, event(K.PREPARING, progress=PROGRESS), NOW)
    assert again.worker.compute_seconds == 0.15
    assert fold(again, event(K.COMMITTED, progress=PROGRESS), NOW).worker.compute_seconds is None
    joined = fold(again, event(K.JOINED, view=3), NOW).worker
    assert (joined.compute_seconds, joined.waiting_seconds) == (None, None)


def test_a_checkpoint_that_failed_is_remembered_until_one_is_durable() -> None:
    def failed(step: int, since: float, error: str) -> Event:
        return event(K.WARNING, trouble=CheckpointTrouble(step=step, since=since + 3600, error=error)).model_copy(
            update={"time": since}
        )

    before = fold(state(P.RUNNING), event(K.WARNING), NOW)
    assert before.checkpoint_trouble is None, "of something else"
    first = fold(before, failed(20, 1.0, "disk full"), NOW)
    second = fold(first, failed(40, 2.0, "read-only"), NOW)
    assert second.checkpoint_trouble == CheckpointTrouble(step=40, since=1.0, error="read-only")
    died = fold(second, event(K.WORKER_EXITED, exit=Exit(code=-9, message="")), NOW)
    assert died.checkpoint_trouble == second.checkpoint_trouble, "the storage is no better for that"
    assert fold(second, event(K.CHECKPOINTED), NOW).checkpoint_trouble is None


@pytest.mark.parametrize(("address", "left"), [("a", ["b"]), ("c", ["a", "b"]), (None, None)])
def test_the_loss_of_one_that_follows_a_part_is_of_that_one_alone(address: str | None, left: list[str] | None) -> None:
    members = [Member(rank=rank, pod=f"p-{rank}", incarnation=1, address=name) for rank, name in enumerate("ab")]
    before = state(P.RUNNING).model_copy(update={"recut": Recut(cut=Cut(stages=2), followers=members)})
    after = fold(before, event(K.FOLLOWER_LOST, address=address), NOW).recut
    assert (None if after is None else [m.address for m in after.followers]) == left


def test_what_is_in_memory_is_known_while_a_worker_trains() -> None:
    """A view is planned by what was told when the worker had left its own, and by nothing of this."""
    here, later = Snapshots(own=[6], kept=[6]), Snapshots(own=[8, 6], kept=[6])
    at = fold(state(P.STARTING), event(K.READY, snapshots=here), NOW)
    assert (at.worker.snapshots, at.worker.memory) == (here, here)
    at = fold(at, event(K.JOINED), NOW)
    assert (at.worker.snapshots, at.worker.memory) == (None, here)
    at = fold(at, event(K.COMMITTED, snapshots=later, saving=6), NOW)
    assert (at.worker.snapshots, at.worker.memory, at.worker.saving) == (None, later, 6)
    at = fold(at, event(K.COMMITTED, saving=6), NOW)
    assert (at.worker.memory, at.worker.saving) == (later, 6), "nothing is told where nothing is new"
    at = fold(at, event(K.CHECKPOINTED), NOW)
    assert at.worker.saving is None
    at = fold(at, event(K.COMMITTED, saving=8), NOW)
    at = fold(at, event(K.LOST_PEER, snapshots=here), NOW)
    assert (at.worker.snapshots, at.worker.memory, at.worker.saving) == (here, here, None)
    assert fold(at, event(K.WORKER_EXITED, exit=Exit(code=1, message="")), NOW).worker.saving is None
