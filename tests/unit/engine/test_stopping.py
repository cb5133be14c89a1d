"""When evaluations are made, which is the best, and when training stops for them: the same whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import EarlyStoppingCallback, TrainerControl, TrainerState

from lmj_api.identity import differences
from lmj_api.names import checkpoint_name
from lmj_api.protocol import Evaluation, EventKind, WorkerPhase
from lmj_api.spec import EarlyStopping, LiveMigrationJob, Splits
from lmj_api.spec.metric import Metric
from lmj_api.spec.recovery import MemorySnapshot
from lmj_api.view import Resume
from lmj_trainer.check import check_rows
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.errors import UserError
from lmj_trainer.state.ledger import packed_wait, unpacked_wait
from lmj_trainer.state.stage_state import Best, StageState
from lmj_trainer.task.sequence_classification import objective as task_module
from lmj_trainer.transport.envelope import Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.pace import Pace
from lmj_trainer.worker.stopping import Stopping

from .small_job import Line, at, elsewhere, losses, make, start, view, weights
from .test_replicas import Workers, of

SCORES = {1: 0.3, 2: 0.5, 3: 0.4, 4: 0.7, 5: 0.7, 6: 0.6, 7: 0.71, 8: 0.6, 9: 0.5, 10: 0.9, 11: 0.9, 12: 0.9}
"""Accuracies by step. With a threshold of 0.05 and a patience of 3: best is step 7, and after step 7 nothing is trained."""
RULE = {"patience": 3, "threshold": 0.05}


def asked(job: LiveMigrationJob, **training: Any) -> LiveMigrationJob:
    document = job.model_dump(by_alias=True, mode="json")
    document["spec"]["training"] |= training
    return LiveMigrationJob.model_validate(document)


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> None:
    real = task_module.evaluate_counts

    def evaluate(*arguments: Any) -> Any:
        result = real(*arguments)
        return result.model_copy(update={"accuracy": SCORES[result.step]})

    monkeypatch.setattr(task_module, "evaluate_counts", evaluate)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(1, 4), st.sampled_from([0.0, 1.0, 2.5]), st.booleans())
def test_it_stops_where_transformers_does(values: list[int], patience: int, threshold: float, larger: bool) -> None:
    callback, state = EarlyStoppingCallback(patience, threshold), TrainerState()
    args: Any = SimpleNamespace(metric_for_best_model="value", greater_is_better=larger)
    stopping, best = Stopping(EarlyStopping(patience=patience, threshold=threshold)), Best()
    for step, value in enumerate(values, 1):
        control = TrainerControl()
        callback.on_evaluate(args, state, control, {"eval_value": value})
        if state.best_metric is None or (value > state.best_metric if larger else value < state.best_metric):
            state.best_metric, state.best_global_step = float(value), step
        best = stopping.judged(best, step, float(value if larger else -value))
        assert stopping.judged(best, step, float(value if larger else -value)) == best, "counted once"
        assert (best.step, abs(best.score or 0.0)) == (state.best_global_step, state.best_metric)
        assert (stopping.why(best) is not None) is control.should_training_stop
        if control.should_training_stop:
            return


@given(st.integers(0, 10_000), st.integers(-1, 2**40))
def test_both_numbers_in_a_word(waited: int, counted: int) -> None:
    assert unpacked_wait(packed_wait(waited, counted)) == (waited, counted)
    assert unpacked_wait(0) == (0, -1), "memory of before there was any"


def test_without_a_rule_nothing_is_counted() -> None:
    best = Best()
    for step in range(1, 9):
        best = Stopping(None).judged(best, step, -float(step))
    assert best == Best(1, -1.0)
    assert Stopping(None).why(Best(1, 0.0, 9, 9)) is None


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        (None, 0.5),
        (Metric.LOSS, -0.25),
        (Metric.ACCURACY, 0.5),
        (Metric.F1, 0.75),
        (Metric.PERPLEXITY, -3.0),
        (Metric.MEAN_ABSOLUTE_ERROR, -2.0),
        (Metric.CORRELATION, -0.125),
    ],
)
def test_what_the_best_is_chosen_by(metric: Metric | None, score: float) -> None:
    result = Evaluation(
        split="validation",
        step=1,
        samples=9,
        loss=0.25,
        accuracy=0.5,
        f1=0.75,
        perplexity=3.0,
        mean_absolute_error=2.0,
        correlation=-0.125,
        metric=metric,
    )
    assert result.score == score
    if metric is not None:
        bare = Evaluation(split="validation", step=1, samples=9, metric=metric)
        assert bare.score == float("-inf"), "what is no number is worse than any"


def test_progress_says_why_it_ended() -> None:
    pace = Pace(12, 4, 16)
    assert (pace.last, pace.at(5).stopped) == (12, None)
    pace.ends(5, "enough")
    assert (pace.last, pace.at(5).stopped, pace.at(5).steps) == (5, "enough", 12)
    pace.ends(3, None)
    assert (pace.last, pace.at(5).stopped) == (12, None)


@pytest.mark.integration
def test_every_so_many_steps_and_at_the_end(job: LiveMigrationJob) -> None:
    line = Line()
    assert make(asked(job, evalSteps=5), line).run(view(1, start())) is WorkerPhase.COMPLETED
    assert list(line.evaluated()) == [5, 10, 12]


@pytest.mark.integration
def test_the_best_by_the_loss(job: LiveMigrationJob, scores: None) -> None:
    """The accuracies are best at step 12, the losses at another or the same: the weights are those of the smallest loss."""
    line = Line()
    job = asked(job, evalSteps=1, metricForBestModel="Loss")
    make(job, line).run(view(1, start()))
    told = [details["evaluation"] for _, details in line.of(EventKind.EVALUATED)]
    best = min(told, key=lambda e: (e.loss, e.step)).step
    assert [d["evaluation"].step for _, d in line.of(EventKind.EVALUATED) if d["best"]][-1] == best
    assert same_weights(job, best, 1)


def same_weights(job: LiveMigrationJob, step: int, view_number: int) -> bool:
    folder = Path(job.spec.output.path) / "checkpoints" / checkpoint_name(step, view_number)
    saved = load_file(folder / "rank-0.safetensors")
    return all(torch.equal(tensor, saved[name]) for name, tensor in weights(job).items())


@pytest.fixture
def undisturbed(job: LiveMigrationJob, tmp_path: Path, scores: None) -> LiveMigrationJob:
    """A run that stopped by itself."""
    whole, line = elsewhere(asked(job, evalSteps=1, earlyStopping=RULE), tmp_path / "whole"), Line()
    assert make(whole, line).run(view(1, start())) is WorkerPhase.COMPLETED
    assert list(line.evaluated()) == list(range(1, 8))
    assert len(losses(whole)) == 7
    stopped = [d["progress"].stopped for _, d in line.of(EventKind.PREPARING) if d["progress"].step == 7]
    assert stopped[-1] == (
        "stopped early at step 7: 3 evaluations in a row were no better (training.earlyStopping); the best is of step 7"
    )
    assert same_weights(whole, 7, 1)
    return whole


def assert_same(job: LiveMigrationJob, whole: LiveMigrationJob) -> None:
    assert losses(job) == losses(whole)
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(job).items())


@pytest.mark.integration
@pytest.mark.parametrize("left", [3, 5, 6, 7])
def test_gone_on_from_a_checkpoint_it_stops_where_it_would_have(
    job: LiveMigrationJob, undisturbed: LiveMigrationJob, left: int
) -> None:
    """What was counted is in the manifest, also of the last step."""
    job = asked(job, evalSteps=1, earlyStopping=RULE)
    document = job.model_dump(by_alias=True, mode="json")
    document["spec"]["checkpoint"]["everySteps"] = 1
    job = LiveMigrationJob.model_validate(document)
    line = Line()
    trainer = make(job, line)
    inbox = trainer._transport.inbox

    def leave(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.CHECKPOINTED and details["checkpoint"].step == left:
            inbox.supersede(inbox.view + 1, "rank 1 was replaced")

    line.on = leave
    trainer._source.boundary = lambda: trainer._checkpointer.wait(30)
    with pytest.raises(ViewBrokenError, match="rank 1 was replaced"):
        trainer.run(view(1, start()))
    again = Line()
    assert make(job, again).run(view(2, at(left))) is WorkerPhase.COMPLETED
    assert list(again.evaluated()) == list(range(left + 1, 8))
    assert_same(job, undisturbed)


@pytest.mark.integration
@pytest.mark.parametrize("step", [4, 5, 7])
@pytest.mark.parametrize("place", ["evaluated", "best"])
def test_a_death_within_an_evaluation_counts_it_once(
    job: LiveMigrationJob, undisturbed: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch, step: int, place: str
) -> None:
    """Its result is known, and not yet that it was made; or it was just about to be known."""
    job, line = asked(job, evalSteps=1, earlyStopping=RULE), Line()
    trainer, died = make(job, line), []
    real = getattr(StageState, place)

    def dies(state: StageState, value: Any) -> None:
        if trainer._state.step == step and not died:
            died.append(step)
            raise ViewBrokenError("rank 1 was replaced")
        real.fset(state, value)

    monkeypatch.setattr(StageState, place, property(real.fget, dies))
    with pytest.raises(ViewBrokenError, match="rank 1 was replaced"):
        trainer.run(view(1, start()))
    assert trainer.run(view(2, Resume(step=step))) is WorkerPhase.COMPLETED
    evaluated = [d["evaluation"].step for _, d in line.of(EventKind.EVALUATED)]
    assert evaluated == list(range(1, 8))
    assert_same(job, undisturbed)


@pytest.mark.integration
def test_back_to_a_snapshot_in_memory(job: LiveMigrationJob, undisturbed: LiveMigrationJob) -> None:
    document = asked(job, evalSteps=1, earlyStopping=RULE).model_dump(by_alias=True, mode="json")
    document["spec"]["recovery"]["memorySnapshot"] = MemorySnapshot(every_steps=1).model_dump(by_alias=True)
    job, line = LiveMigrationJob.model_validate(document), Line()
    trainer = make(job, line)
    inbox, snapshots, broken = trainer._transport.inbox, trainer.snapshots, [6]

    def on(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.COMMITTED:
            if snapshots._thread is not None:
                snapshots._thread.join(30)
            if details["progress"].step in broken:
                broken.remove(details["progress"].step)
                inbox.supersede(inbox.view + 1, "rank 1 was replaced")

    line.on = on
    with pytest.raises(ViewBrokenError, match="rank 1 was replaced"):
        trainer.run(view(1, start()))
    assert snapshots._thread is not None
    snapshots._thread.join(30)  # of step 6: it takes the place of the older one
    assert snapshots.held is not None
    back = snapshots.held.own[-1]
    with pytest.raises(ViewBrokenError, match=r"the snapshot of step 9 is not here any more"):
        trainer.run(view(2, Resume(step=9, snapshot=True)))
    trainer._state.best = Best(1, 0.0, 2, 5)  # of what is forgotten
    assert trainer.run(view(3, Resume(step=back, snapshot=True))) is WorkerPhase.COMPLETED
    assert_same(job, undisturbed)


@pytest.mark.integration
@pytest.mark.parametrize("broken", [5, 6])
def test_replicas_stop_together_and_whoever_leads_knows_what_was_counted(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: None, broken: int
) -> None:
    """Rank 1 has not heard of an evaluation when the view breaks. It is told in the next view, and leads the one after that."""
    one, two = (asked(of(job, tmp_path / name, n), evalSteps=1, earlyStopping=RULE) for name, n in (("one", 1), ("two", 2)))
    Workers(one, monkeypatch).run(start())
    assert len(losses(one)) == 7
    group = Workers(two, monkeypatch)
    leader, other = group.trainers
    tell = leader._group.tell

    def told(kind: Kind, step: int, *what: Any, **more: Any) -> None:
        if kind is Kind.BOUNDARY and (step, leader._transport.inbox.view) == (broken, 1):
            other._transport.inbox.supersede(2, "rank 0 died")
            raise ViewBrokenError("rank 1 does not answer")
        tell(kind, step, *what, **more)

    monkeypatch.setattr(leader._group, "tell", told)
    group.run(start(), until=99)
    assert (leader._state.evaluated, other._state.evaluated) == (broken, broken - 1)
    group.run(Resume(step=broken), number=2, until=broken + 1)
    assert (leader._state.best, leader._state.evaluated) == (other._state.best, other._state.evaluated)
    _, line = group.run(Resume(step=broken + 1, told_by=1), ranks=[1], number=3)
    assert list(line.evaluated())[-1] == 7
    assert losses(two) == losses(one)
    assert all(torch.equal(tensor, weights(two)[name]) for name, tensor in weights(one).items())


@pytest.mark.integration
@pytest.mark.parametrize("field", ["evalSteps", "earlyStopping", "metricForBestModel"])
def test_there_must_be_something_to_evaluate(job: LiveMigrationJob, field: str) -> None:
    values: dict[str, Any] = {"evalSteps": 2, "earlyStopping": {}, "metricForBestModel": "Loss"}
    job = asked(job, **{field: values[field]})
    dataset = job.spec.dataset.model_copy(update={"splits": Splits()})
    output = job.spec.output.model_copy(update={"weights": "Last"})
    spec = job.spec.model_copy(update={"dataset": dataset, "output": output})
    with pytest.raises(UserError, match=rf"training.{field} needs validation rows"):
        check_rows(spec, {"train": 64})
    check_rows(spec, {"train": 64, "validation": 1})


def test_a_metric_that_the_task_has_not(job: LiveMigrationJob) -> None:
    message = "training.metricForBestModel Perplexity: evaluations of model.task SequenceClassification have Loss, Accuracy, F1"
    with pytest.raises(ValidationError, match=message):
        asked(job, metricForBestModel="Perplexity")


@pytest.mark.parametrize(
    ("field", "value", "continuable"),
    [("evalSteps", 2, True), ("earlyStopping", {"patience": 1}, True), ("metricForBestModel", "Loss", False)],
)
def test_they_are_part_of_the_run_where_they_are_set(
    job: LiveMigrationJob, field: str, value: Any, continuable: bool, digest_of: Callable[[LiveMigrationJob], str]
) -> None:
    other = asked(job, **{field: value})
    assert digest_of(other) != digest_of(job) == digest_of(asked(job, **{field: None}))
    (difference,) = differences(job.spec, other.spec, finished=False)
    assert (difference.path, difference.continuable) == (f"training.{field}", continuable)


@pytest.fixture
def digest_of() -> Callable[[LiveMigrationJob], str]:
    return lambda job: state_digest(job.spec)
