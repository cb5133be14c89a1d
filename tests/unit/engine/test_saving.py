"""When a checkpoint is due: by steps, by time, at the end, and never beside another."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.store.port import RenewableError
from lmj_trainer.worker import saving as saving_module
from lmj_trainer.worker.problem import Problem, Renewal
from lmj_trainer.worker.saving import Saving

STEPS = 100


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(saving_module, "time", clock)
    return clock


def make(job: LiveMigrationJob, **changes: Any) -> tuple[Saving, Any]:
    checkpoint = job.spec.checkpoint.model_copy(update=changes)
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"checkpoint": checkpoint})})
    complaints: list[int] = []
    renewal = SimpleNamespace(due=False)
    checkpointer = SimpleNamespace(busy=False, complain=lambda: complaints.append(1), complaints=complaints, renewal=renewal)
    none: Any = None
    pace: Any = SimpleNamespace(last=STEPS)
    return Saving(job, "d", none, none, checkpointer, none, pace, 1.0), checkpointer  # type: ignore[arg-type]


def test_by_steps_and_at_the_end(job: LiveMigrationJob, clock: Clock) -> None:
    saving, _ = make(job, every_steps=10, every_seconds=None)
    assert [step for step in range(1, STEPS + 1) if saving.due(step)] == list(range(10, STEPS + 1, 10))
    clock.now += 1e6
    assert not saving.due(11)
    saving, _ = make(job, every_steps=None, every_seconds=None)
    assert [step for step in range(1, STEPS + 1) if saving.due(step)] == [STEPS]


def test_by_time_since_all_was_durable(job: LiveMigrationJob, clock: Clock) -> None:
    saving, _ = make(job, every_steps=None, every_seconds=60.0)
    assert not saving.due(1)
    clock.now += 59.5
    assert not saving.due(2)
    clock.now += 0.5
    assert saving.due(3)
    saving.begin()
    assert not saving.due(4)
    clock.now += 60.0
    assert saving.due(5)


@pytest.mark.parametrize(("patience", "longest"), [(300.0, 30.0), (60.0, 20.0)])
def test_the_last_one_is_tried_again_with_longer_and_longer_pauses(
    job: LiveMigrationJob, clock: Clock, monkeypatch: pytest.MonkeyPatch, patience: float, longest: float
) -> None:
    saving, checkpointer = make(job, retry_seconds=1000.0)
    tries: list[float] = []
    checkpointer.settled, checkpointer.wait, checkpointer.problem = lambda seconds: True, lambda seconds: None, "no room"

    def start(recorder: Any, attempt: int = 0, *, awaited: bool = False) -> None:
        tries.append(clock.now)
        checkpointer.problem = "" if len(tries) == 8 else "no room"

    group = SimpleNamespace(leads=True, check=lambda: None, tell=lambda *word: None)
    monkeypatch.setattr(saving, "start", start)
    monkeypatch.setattr(saving, "_state", SimpleNamespace(step=STEPS))
    monkeypatch.setattr(saving, "_group", group)
    monkeypatch.setattr(saving, "_control", SimpleNamespace(emit=lambda kind, **details: None))
    monkeypatch.setattr(saving, "_pace", SimpleNamespace(at=lambda step, activity: None))
    monkeypatch.setattr(saving, "_patience", patience)
    begun = clock.now
    saving.await_durable(None)
    pauses = [round(after - before, 6) for before, after in itertools.pairwise([begun, *tries])]
    assert pauses == [1, 2, 4, 8, 16, longest, longest, longest]


def test_none_beside_another_but_the_last(job: LiveMigrationJob, clock: Clock) -> None:
    saving, checkpointer = make(job, every_steps=1, every_seconds=None)
    checkpointer.busy = True
    assert not saving.due(7)
    assert saving.due(STEPS)
    assert len(checkpointer.complaints) == 2
    checkpointer.busy = False
    assert saving.due(7)
    assert len(checkpointer.complaints) == 2


def test_one_that_the_store_refused_is_made_good_for_before_the_next_is_due(job: LiveMigrationJob, clock: Clock) -> None:
    saving, checkpointer = make(job, every_steps=50, every_seconds=None)
    assert not saving.due(7)
    checkpointer.renewal.due = True
    assert saving.due(7)
    checkpointer.busy = True
    assert not saving.due(7)


def test_pauses_after_a_refusal_get_longer_and_end_with_a_checkpoint(clock: Clock) -> None:
    renewal = Renewal(clock.monotonic)
    assert not renewal.due
    refused = Problem.of("rank 0 could not write", RenewableError("s3://b/x: ExpiredToken: renew the Secret keys"))
    assert refused == Problem("rank 0 could not write: s3://b/x: ExpiredToken: renew the Secret keys", refused=True)
    for pause in (10, 20, 40, 60, 60):
        renewal.came(refused)
        clock.now += pause - 0.5
        assert not renewal.due
        clock.now += 0.5
        assert renewal.due
    renewal.came(None)
    assert not renewal.due
    renewal.came(refused)
    clock.now += 10
    assert renewal.due, "it begins anew"
    renewal.came(Problem.of("rank 0 could not write", OSError("no room")))
    assert not renewal.due, "a disk that is full is looked at when the next is due"
