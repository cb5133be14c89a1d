"""A whole small run in this process: one stage, the transport in memory, the line to the agent as a list."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lmj_api.names import checkpoint_name, parse_checkpoint_name
from lmj_api.protocol import EventKind, Progress, Snapshots, WorkerPhase
from lmj_api.spec import LiveMigrationJob, Splits
from lmj_api.spec.recovery import MemorySnapshot
from lmj_api.view import Member, Resume
from lmj_trainer.errors import UserError
from lmj_trainer.follow.source import Source
from lmj_trainer.store.port import Ref
from lmj_trainer.task.sequence_classification import objective as task_module
from lmj_trainer.trained import read_trained
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker import checkpointer as checkpointer_module
from lmj_trainer.worker import saving as saving_module

from .small_job import Line, at, elsewhere, losses, make, start, view, weights

pytestmark = pytest.mark.integration


def test_from_the_start_to_a_model(job: LiveMigrationJob) -> None:
    line = Line()
    trainer = make(job, line)
    assert trainer.run(view(1, start())) is WorkerPhase.COMPLETED
    assert len(set(losses(job))) == 12
    assert line.of(EventKind.COMPLETED)
    assert [d["progress"].step for _, d in line.of(EventKind.COMMITTED)] == list(range(1, 13))
    best = max(line.evaluated().items(), key=lambda item: (item[1], -item[0]))[0]
    of_best = load_file(Path(job.spec.output.path) / "checkpoints" / checkpoint_name(best, 1) / "rank-0.safetensors")
    assert all(torch.equal(tensor, of_best[name]) for name, tensor in weights(job).items())
    trained, dataset = read_trained(Path(job.spec.output.path) / "model"), job.spec.dataset
    assert (trained.text, trained.label, trained.max_length) == (dataset.text, dataset.label, dataset.max_length)


def test_checkpoints_that_nobody_waits_for_keep_to_the_rate_of_the_job(job: LiveMigrationJob) -> None:
    """The first is under way, slowly, until an epoch's best is due."""
    line = Line()
    checkpoint = job.spec.checkpoint.model_copy(update={"every_steps": 1, "bandwidth_mbps": 0.001})
    slow = job.model_copy(update={"spec": job.spec.model_copy(update={"checkpoint": checkpoint})})
    assert make(slow, line).run(view(1, start())) is WorkerPhase.COMPLETED
    steps = [d["checkpoint"].step for _, d in line.of(EventKind.CHECKPOINTED)]
    assert {1, 12} <= set(steps) <= {1, 4, 8, 12}


def test_a_view_that_begins_waits_for_no_rate(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of the view before may be under way, and rank 0 wait for all parts of it."""
    line = Line()
    trainer = make(job, line)
    steps: list[int] = []
    monkeypatch.setattr(trainer._checkpointer, "hurry", lambda: steps.append(len(line.of(EventKind.COMMITTED))))
    assert trainer.run(view(1, start())) is WorkerPhase.COMPLETED
    assert steps[0] == 0


@pytest.mark.parametrize(("rank", "gentle"), [(0, False), (1, True)])
def test_who_joins_has_time_and_who_takes_this_ranks_place_has_not(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch, rank: int, gentle: bool
) -> None:
    asked: list[tuple[str | None, bool]] = []
    monkeypatch.setattr(Source, "follow", lambda self, address, *, gentle: asked.append((address, gentle)))
    line = Line()
    make(job, line)
    line.follow(Member(rank=rank, pod="next", incarnation=1, address="there"))
    line.follow(None)
    assert asked == [("there", gentle), (None, False)]


def test_a_source_is_told_what_each_step_took_and_asks_what_they_usually_take(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(Source, "stepped", lambda self, seconds: told.append(seconds))
    trainer = make(job, Line())
    trainer.run(view(1, start()))
    assert len(told) == 12
    assert min(told) > 0
    assert trainer._source._usual() == round(sorted(told[-9:])[4], 6)


def test_drained_and_gone_on_is_undisturbed(job: LiveMigrationJob, tmp_path: Path) -> None:
    whole = elsewhere(job, tmp_path / "whole")
    make(whole, Line()).run(view(1, start()))
    line = Line()
    line.on = lambda kind, details: line.draining.set() if kind is EventKind.COMMITTED and details["progress"].step == 4 else None
    assert make(job, line).run(view(1, start())) is WorkerPhase.DRAINED
    left = line.of(EventKind.CHECKPOINTED)[-1][1]["checkpoint"].step
    assert left in (4, 5)
    assert make(job, Line()).run(view(2, at(left))) is WorkerPhase.COMPLETED
    assert losses(job) == losses(whole)
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(job).items())


def test_a_follower_takes_over_where_every_step_is_evaluated(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job.spec.model_copy(update={"training": job.spec.training.model_copy(update={"batch_size": 64})})
    line = Line()
    trainer = make(job.model_copy(update={"spec": spec}), line)
    monkeypatch.setattr(type(trainer._source), "in_sync", property(lambda source: True))
    line.on = lambda kind, details: setattr(line, "handover", 1) if kind is EventKind.COMMITTED else None
    trainer._source.boundary = lambda: trainer._checkpointer.wait(30)  # else the move may wait for it
    with pytest.raises(ViewBrokenError, match="the next view has other members, from step 2 on"):
        trainer.run(view(1, start()))
    assert list(line.evaluated()) == [1, 2]


def test_a_worker_that_lived_on_goes_where_the_next_view_says(job: LiveMigrationJob, tmp_path: Path) -> None:
    """Back to the start, then back to a checkpoint, in one process."""
    whole = elsewhere(job, tmp_path / "whole")
    make(whole, Line()).run(view(1, start()))
    line = Line()
    trainer = make(job, line)
    inbox = trainer._transport.inbox

    def break_at(step: int) -> None:
        def on(kind: EventKind, details: dict[str, Any]) -> None:
            if kind is EventKind.COMMITTED and details["progress"].step == step:
                inbox.supersede(inbox.view + 1, "rank 1 was replaced")

        line.on = on

    epoch = 4  # steps: 64 rows for training
    for number, resume, broken in ((1, start(), 2), (2, start(), epoch + 3), (3, at(epoch, 2), epoch + 2)):
        break_at(broken)
        with pytest.raises(ViewBrokenError, match="rank 1 was replaced"):
            trainer.run(view(number, resume))
        assert trainer._state.step == broken
        trainer._checkpointer.wait(30)
    line.on = lambda kind, details: None
    began = time.monotonic()
    time.sleep(0.2)  # nothing is waited for: so long training pauses
    assert trainer.run(view(4, at(epoch, 2))) is WorkerPhase.COMPLETED
    # Told with the first step of each view but the first: before that this process took none.
    paused = [
        (d["progress"].step, d["paused_seconds"]) for _, d in line.of(EventKind.COMMITTED) if d["paused_seconds"] is not None
    ]
    assert [step for step, _ in paused] == [1, epoch + 1, epoch + 1]
    assert 0.2 <= paused[-1][1] <= time.monotonic() - began + 1
    assert losses(job) == losses(whole)
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(job).items())


def test_a_step_is_in_the_ledger_with_what_is_to_be_recorded_before_it_is_recorded(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the metrics sees no step that is done again because a process died right after it had recorded it."""
    whole = elsewhere(job, tmp_path / "whole")
    make(whole, Line()).run(view(1, start()))
    memory = os.memfd_create("state")
    first = make(job, Line(), memory=memory)
    assert first._recorder is not None
    record = first._recorder.step

    def die(progress: Progress, now: float) -> None:
        if progress.step == 6:
            raise KeyboardInterrupt
        record(progress, now)

    monkeypatch.setattr(first._recorder, "step", die)
    with pytest.raises(KeyboardInterrupt):
        first.run(view(1, start()))
    assert len(losses(job)) == 5
    line = Line()
    second = make(job, line, memory=memory)
    assert second._state.step == 6
    assert second.run(view(2, Resume(step=6, told_by=0))) is WorkerPhase.COMPLETED
    assert [d["progress"].step for _, d in line.of(EventKind.COMMITTED)] == list(range(7, 13))
    assert losses(job) == losses(whole)


@pytest.mark.parametrize("step", [0, 4])
def test_memory_that_is_not_believed_is_replaced_where_it_is_of_the_views_step(
    job: LiveMigrationJob, tmp_path: Path, step: int
) -> None:
    whole = elsewhere(job, tmp_path / "whole")
    make(whole, Line()).run(view(1, start()))
    line = Line()
    trainer = make(job, line)
    inbox, state = trainer._transport.inbox, trainer._state
    resume = at(step) if step else start()

    def leave(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is (EventKind.CHECKPOINTED if step else EventKind.JOINED):
            inbox.supersede(inbox.view + 1, "rank 1 was replaced")

    def looked_at(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.JOINED:
            seen.append(state.saved.clone())
            inbox.supersede(inbox.view + 1, "rank 1 was replaced")

    line.on = leave
    trainer._source.boundary = lambda: trainer._checkpointer.wait(30)  # no step is taken beside the checkpoint
    with pytest.raises(ViewBrokenError, match="rank 1 was replaced"):
        trainer.run(view(1, start()))
    assert state.step == step
    right, seen = state.saved.clone(), []
    state.slots[0].weight.fill_(123.0)
    wrong = state.saved.clone()
    line.on = looked_at
    for number, believed in ((2, True), (3, False)):
        with pytest.raises(ViewBrokenError, match="rank 1 was replaced"):
            trainer.run(view(number, resume.model_copy(update={"believed": believed})))
    assert torch.equal(seen[0], wrong), "what is there is not read again without a reason"
    assert torch.equal(seen[1], right)
    line.on = lambda kind, details: None
    assert trainer.run(view(4, resume)) is WorkerPhase.COMPLETED
    assert losses(job) == losses(whole)


@pytest.mark.parametrize(("failing", "taken"), [([8], 4), ([4, 8], 12)])
def test_the_best_checkpoint_could_not_be_written(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch, failing: list[int], taken: int
) -> None:
    """Training goes on, and ends with a model: of the best step that has a checkpoint."""
    accuracies = {4: 0.5, 8: 0.9, 12: 0.7}
    real_write, real_evaluate = checkpointer_module.write_tensors, task_module.evaluate_counts

    def write(path: Ref, *others: Any) -> Any:
        if parse_checkpoint_name(path.parent.name)[0] in failing:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real_write(path, *others)

    def evaluate(*arguments: Any) -> Any:
        result = real_evaluate(*arguments)
        return result.model_copy(update={"accuracy": accuracies[result.step]})

    monkeypatch.setattr(checkpointer_module, "write_tensors", write)
    monkeypatch.setattr(task_module, "evaluate_counts", evaluate)
    line = Line()
    assert make(job, line).run(view(1, start())) is WorkerPhase.COMPLETED
    warnings = [message for message, _ in line.of(EventKind.WARNING)]
    assert [message.endswith("training goes on") for message in warnings] == [True] * len(failing) + [False]
    assert warnings[-1] == f"the best weights, of step 8, have no checkpoint: those of step {taken} are taken"
    expected = load_file(Path(job.spec.output.path) / "checkpoints" / checkpoint_name(taken, 1) / "rank-0.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(job).items())
    card = (Path(job.spec.output.path) / "model" / "README.md").read_text()
    told = [row.split(" | ")[1:2] for row in card.splitlines() if row.startswith("| validation ")]
    assert told == [[str(taken)]], "the card has the results of the weights that were taken, and no others"


def full(path: Ref, *others: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_a_validation_loss_that_is_no_number_is_recorded_as_none(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    real = task_module.evaluate_counts
    monkeypatch.setattr(task_module, "evaluate_counts", lambda counts, loss, *rest: real(counts, math.nan, *rest))
    line = Line()
    board = job.spec.output.model_copy(update={"tensorboard": True})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"output": board})})
    assert make(job, line).run(view(1, start())) is WorkerPhase.COMPLETED
    assert [d["evaluation"].loss for _, d in line.of(EventKind.EVALUATED)] == [None] * 3
    text = (Path(job.spec.output.path) / "evaluation.json").read_text()
    assert "NaN" not in text
    assert [entry["loss"] for entry in json.loads(text)] == [None] * 3
    assert "| not a number |" in (Path(job.spec.output.path) / "model" / "README.md").read_text()


def test_the_last_checkpoint_is_tried_until_it_can_be_written(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full when training was done: the worker keeps what it has until there is room."""
    failures: list[float] = []
    real = checkpointer_module.write_tensors

    def room(path: Ref, *others: Any) -> Any:
        return real(path, *others) if len(failures) >= 2 else full(path)

    def on(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.WARNING and details.get("trouble") is not None:
            failures.append(details["trouble"].step)

    monkeypatch.setattr(checkpointer_module, "write_tensors", room)
    monkeypatch.setattr(saving_module, "_LONGEST_RETRY_SECONDS", 0.1)
    # Where the whole run has no other checkpoint than the last.
    spec = job.spec.model_copy(update={"dataset": job.spec.dataset.model_copy(update={"splits": Splits()})})
    line = Line(on)
    assert make(job.model_copy(update={"spec": spec}), line).run(view(1, start())) is WorkerPhase.COMPLETED
    assert len(set(failures)) == 1
    [(message, _), (again, _)] = line.of(EventKind.WARNING)
    assert message == again
    assert message.endswith("; it is tried again")
    shown = [d["progress"].activity for _, d in line.of(EventKind.PREPARING) if "progress" in d]
    assert any(text.startswith("checkpoint: rank 0 could not write: [Errno 28] No space left on device") for text in shown)
    assert [c.name for _, d in line.of(EventKind.CHECKPOINTED) for c in [d["checkpoint"]]] == [checkpoint_name(failures[0], 1)]


def test_the_last_checkpoint_can_never_be_written(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be called done that is not durable: the job fails, and says of what; run again, it goes on."""
    monkeypatch.setattr(checkpointer_module, "write_tensors", full)
    monkeypatch.setattr(saving_module, "_LONGEST_RETRY_SECONDS", 0.1)
    checkpoint = job.spec.checkpoint.model_copy(update={"retry_seconds": 0.5})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"checkpoint": checkpoint})})
    line = Line()
    with pytest.raises(UserError, match=r"the last checkpoint, of step 12, could not be written within 0.5 s .*No space left"):
        make(job, line).run(view(1, start()))
    assert not line.of(EventKind.COMPLETED)
    monkeypatch.undo()
    assert make(job, Line()).run(view(2, start())) is WorkerPhase.COMPLETED


def test_back_to_snapshots_in_memory(job: LiveMigrationJob, tmp_path: Path) -> None:
    """One of a step with a checkpoint and an evaluation, which is not made again, and one of a step with neither."""
    whole = elsewhere(job, tmp_path / "whole")
    make(whole, Line()).run(view(1, start()))
    recovery = job.spec.recovery.model_copy(update={"memory_snapshot": MemorySnapshot(every_steps=2)})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"recovery": recovery})})
    line = Line()
    trainer = make(job, line)
    inbox, snapshots = trainer._transport.inbox, trainer.snapshots
    broken: list[int] = [7, 9]

    def on(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.COMMITTED:
            if snapshots._thread is not None:
                snapshots._thread.join(30)  # else the next may be left out
            if details["progress"].step in broken:
                broken.remove(details["progress"].step)
                inbox.supersede(inbox.view + 1, "rank 1 was replaced")

    line.on = on
    for number, resume, own in ((1, start(), [6, 4]), (2, Resume(step=6, snapshot=True), [8, 6])):
        with pytest.raises(ViewBrokenError, match="rank 1 was replaced"):
            trainer.run(view(number, resume))
        assert snapshots.held == Snapshots(own=own)
    evaluated = [d["evaluation"].step for _, d in line.of(EventKind.EVALUATED)]
    assert evaluated == [4, 8]
    assert trainer.run(view(3, Resume(step=8, snapshot=True))) is WorkerPhase.COMPLETED
    assert [d["evaluation"].step for _, d in line.of(EventKind.EVALUATED)][2:] == [12]
    assert losses(job) == losses(whole)
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(job).items())
    assert not line.of(EventKind.WARNING)
