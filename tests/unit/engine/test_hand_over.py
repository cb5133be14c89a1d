"""A view that is left while a checkpoint is due or being written, for a move or by a death: two ranks in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lmj_api.names import checkpoint_name, parse_checkpoint_name
from lmj_api.protocol import EventKind, Holding, Snapshots, WorkerPhase
from lmj_api.spec import LiveMigrationJob, Splits
from lmj_api.spec.recovery import MemorySnapshot
from lmj_api.view import Resume
from lmj_trainer.store.port import Ref
from lmj_trainer.task.sequence_classification import objective as task_module
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.memory import MemoryTransport
from lmj_trainer.worker import checkpointer as checkpointer_module
from lmj_trainer.worker import trainer as trainer_module
from lmj_trainer.worker.trainer import Trainer

from .small_job import Line, draw_in_turn, elsewhere, losses, make, start, view, weights

pytestmark = pytest.mark.integration

SECONDS = 60.0
BEST = 8


class Pair:
    """Rank 1 has a follower that is in sync. ``asked_at``: the step after which it is told to hand over."""

    def __init__(self, job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch, asked_at: int | None = None) -> None:
        # Ranks of one process share the generator that dropout draws from, so there is none.
        model, spec = job.spec.model, job.spec
        assert model.scratch is not None
        changes = {
            "pipeline": spec.pipeline.model_copy(update={"stages": 2}),
            "model": model.model_copy(update={"scratch": model.scratch.model_copy(update={"dropout": 0.0})}),
        }
        self.job = job.model_copy(update={"spec": spec.model_copy(update=changes)})
        draw_in_turn(monkeypatch, 2)
        network: dict[str, MemoryTransport] = {}
        self.lines = [Line(), Line()]
        self.trainers = [make(self.job, line, rank, network) for rank, line in enumerate(self.lines)]
        monkeypatch.setattr(trainer_module.Source, "in_sync", property(lambda source: source is self.trainers[1]._source))

        def on(kind: EventKind, details: dict[str, Any]) -> None:
            if kind is EventKind.COMMITTED and details["progress"].step == asked_at:
                self.lines[1].handover = 1

        self.lines[1].on = on

    def run(self, number: int, resume: Resume) -> list[WorkerPhase | ViewBrokenError]:
        ends: dict[int, WorkerPhase | ViewBrokenError] = {}

        def go(rank: int, trainer: Trainer) -> None:
            try:
                ends[rank] = trainer.run(view(number, resume, 2))
            except ViewBrokenError as error:
                ends[rank] = error

        threads = [threading.Thread(target=go, args=each) for each in enumerate(self.trainers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        return [ends[rank] for rank in range(2)]

    def to_the_end(self) -> int:
        """A first view that is left, and a second one from the same step, which is returned."""
        first = self.run(1, start())
        assert all(isinstance(end, ViewBrokenError) for end in first), first
        step = self.step
        assert self.run(2, Resume(step=step)) == [WorkerPhase.COMPLETED] * 2
        return step

    @property
    def step(self) -> int:
        return self.trainers[0]._state.reached

    @property
    def warnings(self) -> list[str]:
        return [message for line in self.lines for message, _ in line.of(EventKind.WARNING)]

    @property
    def folders(self) -> dict[str, bool]:
        """All that is in the checkpoint folder, and whether it has a manifest."""
        root = Path(self.job.spec.output.path) / "checkpoints"
        return {path.name: (path / "manifest.json").exists() for path in root.iterdir()}

    def of_best(self, number: int) -> bool:
        """Whether the model is of the best step, as view ``number`` wrote it."""
        folder = Path(self.job.spec.output.path) / "checkpoints" / checkpoint_name(BEST, number)
        tensors = {name: tensor for rank in range(2) for name, tensor in load_file(folder / f"rank-{rank}.safetensors").items()}
        return all(torch.equal(tensor, tensors[name]) for name, tensor in weights(self.job).items())


def undisturbed(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Losses of two ranks that nobody disturbs."""
    monkeypatch.undo()
    pair = Pair(elsewhere(job, Path(job.spec.output.path).parent / "whole"), monkeypatch)
    assert pair.run(1, start()) == [WorkerPhase.COMPLETED] * 2
    return losses(pair.job)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Step 8 is the best. Storage does what the test says before it takes a part of that step's checkpoint."""
    accuracies, real_evaluate, real_write = (
        {4: 0.5, BEST: 0.9, 12: 0.7},
        task_module.evaluate_counts,
        checkpointer_module.write_tensors,
    )

    def evaluate(*arguments: Any) -> Any:
        result = real_evaluate(*arguments)
        return result.model_copy(update={"accuracy": accuracies[result.step]})

    monkeypatch.setattr(task_module, "evaluate_counts", evaluate)

    def set_delay(delay: Callable[[], None]) -> None:
        def write(path: Ref, *others: Any) -> Any:
            if parse_checkpoint_name(path.parent.name)[0] == BEST:
                delay()
            return real_write(path, *others)

        monkeypatch.setattr(checkpointer_module, "write_tensors", write)

    return set_delay


@pytest.mark.parametrize(("asked_at", "left_at"), [(7, range(8, 9)), (8, range(9, 13))])
def test_a_move_keeps_the_best(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch, slow: Callable[..., None], asked_at: int, left_at: range
) -> None:
    """At the best step's boundary the next view writes it; at a later one the move waits for what is being written."""
    slow(lambda: time.sleep(0.3))
    pair = Pair(job, monkeypatch, asked_at)

    def boundary() -> None:
        if pair.step != BEST:
            pair.trainers[0]._checkpointer.wait(SECONDS)  # else all may be trained before the move

    pair.trainers[0]._source.boundary = boundary
    assert pair.to_the_end() in left_at
    assert pair.warnings == []
    assert pair.of_best(2 if asked_at == 7 else 1)
    assert all(pair.folders.values()), pair.folders
    assert losses(pair.job) == undisturbed(job, monkeypatch)


def test_the_last_update_is_made_while_the_next_view_is(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks leave the view without it. Who is replaced makes it only where it is needed after all, and it is the same."""
    pair = Pair(job, monkeypatch, 5)
    pair.trainers[0]._source.boundary = lambda: pair.trainers[0]._checkpointer.wait(SECONDS)  # else the move may wait for one
    first = pair.run(1, start())
    assert [str(end) for end in first] == ["the next view has other members, from step 6 on"] * 2
    states = [trainer._state for trainer in pair.trainers]
    assert [(state.step, state.holding) for state in states] == [(5, Holding(step=6))] * 2
    assert [trainer.replaced for trainer in pair.trainers] == [False, True]
    pair.trainers[0].settle()
    assert [state.step for state in states] == [6, 5]
    assert pair.run(2, Resume(step=6)) == [WorkerPhase.COMPLETED] * 2
    assert not pair.trainers[1].replaced
    assert losses(pair.job) == undisturbed(job, monkeypatch)


def test_a_death_beside_the_best_checkpoint_keeps_it(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch, slow: Callable[..., None]
) -> None:
    """The view breaks while the best is written and before the next step is taken: the next view writes it, and removes the half."""
    pair = Pair(job, monkeypatch)

    def broken() -> None:
        for trainer in pair.trainers:
            trainer._transport.inbox.supersede(2, "a worker was killed")
        time.sleep(0.3)

    slow(broken)
    pair.trainers[0]._source.boundary = lambda: wait_broken(pair)
    assert pair.to_the_end() == BEST
    assert pair.warnings == []
    assert pair.of_best(2)
    assert checkpoint_name(BEST, 1) not in pair.folders
    assert all(pair.folders.values()), pair.folders
    assert losses(pair.job) == undisturbed(job, monkeypatch)


def wait_broken(pair: Pair) -> None:
    """At the best step's boundary in view 1: until its checkpoint is under way, which breaks the view."""
    inbox = pair.trainers[0]._transport.inbox
    if pair.step != BEST or inbox.view != 1:
        return
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        inbox.check()
        time.sleep(0.01)
    raise AssertionError("the checkpoint was not begun")


def test_storage_that_hangs_does_not_keep_a_rank(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch, slow: Callable[..., None]
) -> None:
    monkeypatch.setattr(checkpointer_module, "_PROMISING_SECONDS", 0.0)
    goes_on = threading.Event()
    slow(lambda: goes_on.wait(SECONDS) and None)
    pair = Pair(job, monkeypatch, 8)
    first = pair.run(1, start())
    assert [str(end) for end in first] == ["the next view has other members, from step 9 on"] * 2
    assert all(trainer._checkpointer.busy for trainer in pair.trainers)
    goes_on.set()
    assert pair.run(2, Resume(step=9)) == [WorkerPhase.COMPLETED] * 2
    assert pair.warnings == [f"the best weights, of step {BEST}, have no checkpoint: those of step 4 are taken"]
    assert all(pair.folders.values()), pair.folders
    assert losses(pair.job) == undisturbed(job, monkeypatch)


def test_a_checkpoint_of_every_step_does_not_keep_a_rank(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is due where all leave is taken by the next view."""
    spec = job.spec.model_copy(
        update={
            "dataset": job.spec.dataset.model_copy(update={"splits": Splits()}),
            "checkpoint": job.spec.checkpoint.model_copy(update={"every_steps": 1, "keep": 99}),
        }
    )
    pair = Pair(job.model_copy(update={"spec": spec}), monkeypatch, 5)
    pair.trainers[0]._source.boundary = lambda: pair.trainers[0]._checkpointer.wait(SECONDS)
    step = pair.to_the_end()
    assert step == 6
    assert pair.folders[checkpoint_name(6, 2)]
    assert checkpoint_name(6, 1) not in pair.folders
    assert len(set(losses(pair.job))) == len(losses(pair.job))


def test_a_pod_that_takes_a_place_has_a_snapshot_before_the_next_is_due(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1's own snapshots went with its old pod: with rank 0's pod the last of them would go."""
    recovery = job.spec.recovery.model_copy(update={"memory_snapshot": MemorySnapshot(every_steps=3)})
    pair = Pair(job.model_copy(update={"spec": job.spec.model_copy(update={"recovery": recovery})}), monkeypatch, 6)
    seen: dict[int, list[Snapshots | None]] = {}

    def on(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.COMMITTED:
            seen[details["progress"].step] = [trainer.snapshots.held for trainer in pair.trainers]

    pair.lines[0].on = on

    def waits(trainer: Trainer) -> Callable[[], None]:
        def boundary() -> None:
            trainer.snapshots._wait()  # else the next may be left out
            trainer._checkpointer.wait(SECONDS)  # else the move may be later

        return boundary

    for trainer in pair.trainers:
        trainer._source.boundary = waits(trainer)
    assert all(isinstance(end, ViewBrokenError) for end in pair.run(1, start()))
    assert pair.step == 7
    assert sorted(seen) == list(range(1, 8))
    assert seen[1] == seen[2] == [Snapshots()] * 2, "from the beginning on there is nothing to lose"
    assert seen[5][0] == Snapshots(own=[3], kept=[3])
    # Another pod: its state is in sync, its shelves are bare.
    for shelf in (pair.trainers[1].snapshots._own, pair.trainers[1].snapshots._keeper._shelf):
        assert shelf is not None
        shelf.forget(-1)
    seen.clear()
    assert pair.run(2, Resume(step=7, common_snapshot=6)) == [WorkerPhase.COMPLETED] * 2
    # When rank 0 reports step 9, rank 1 may have the snapshot of 9 already.
    assert all(has is not None and 8 in has.own for has in seen[9]), seen
    assert pair.warnings == []
    assert losses(pair.job) == undisturbed(job, monkeypatch)
