"""When a checkpoint is due: by steps, by time, at the end, and never beside another."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.worker import saving as saving_module
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
    checkpointer = SimpleNamespace(busy=False, complain=lambda: complaints.append(1), complaints=complaints)
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
