"""Whose results an output folder has, and what is said to another job."""

from pathlib import Path
from typing import Any

import pytest

from lmj_api.identity import differences, state_fields
from lmj_api.layout import Layout
from lmj_api.results import LARGEST_JOB, ResultsError, other_job, trained_job
from lmj_api.spec import JobSpec, LiveMigrationJob

BASE: dict[str, Any] = {
    "model": {"source": "/jobs/a/model"},
    "dataset": {"source": "/jobs/a/reviews.csv", "text": ["text"], "label": "label"},
    "output": {"path": "/jobs/a/out"},
}


def spec(**parts: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate({key: {**BASE.get(key, {}), **parts.get(key, {})} for key in {*BASE, *parts}})


def told(*, finished: bool = False, **parts: dict[str, Any]) -> list[str]:
    return [str(found) for found in differences(spec(), spec(**parts), finished=finished)]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"training": {"learning_rate": 1e-4}}, ["training.learningRate 5e-05 → 0.0001"]),
        ({"training": {"epochs": 5, "max_steps": 9}}, ["training.epochs 3 → 5", "training.maxSteps none → 9"]),
        ({"training": {"schedule": "Constant"}}, ["training.schedule Linear → Constant"]),
        ({"model": {"lora": {"r": 4}}}, ["model.lora none → set"]),
        ({"model": {"source": None, "scratch": {}}}, ["model.source model → none", "model.scratch none → set"]),
        ({"model": {"labels": ["a", "b"]}}, ["model.labels none → a, b"]),
        ({"dataset": {"source": "/jobs/b/other.csv"}}, ["dataset.source reviews.csv → other.csv"]),
        ({"dataset": {"splits": {"validation_fraction": 0.1}}}, ["dataset.splits.validationFraction 0.0 → 0.1"]),
        ({"dataset": {"splits": {"test_fraction": 0.1}, "max_samples": {"test": 4}}}, ["dataset.splits.testFraction 0.0 → 0.1"]),
        ({"pipeline": {"micro_batches": 8}}, ["pipeline.microBatches 4 → 8"]),
        ({"pipeline": {"first_in_halves": False}}, ["pipeline.firstInHalves True → False"]),
    ],
)
def test_what_differs_is_named_as_in_yaml(parts: dict[str, Any], says: list[str]) -> None:
    assert told(**parts) == says
    assert state_fields(spec(**parts)) != state_fields(spec()), "what is named is what makes it another state"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"output": {"weights": "Best"}}, ["output.weights Last → Best"]),
        ({"output": {"int8": True}}, ["output.int8 False → True"]),
        ({"dataset": {"splits": {"test": "/jobs/a/test.csv"}}}, ["dataset.splits.test none → test.csv"]),
        ({"dataset": {"max_samples": {"test": 5}}}, ["dataset.maxSamples.test none → 5"]),
    ],
)
def test_the_end_counts_once_it_is_there(parts: dict[str, Any], says: list[str]) -> None:
    assert told(**parts) == []
    assert told(**parts, finished=True) == says


def test_a_model_in_8_bits_may_be_there_that_nobody_asks_for() -> None:
    asked = spec(output={"int8": True})
    assert state_fields(asked) == state_fields(spec())
    assert differences(asked, spec(), finished=True) == differences(asked, asked, finished=True) == ()


def test_a_constant_rate_may_be_longer_until_the_run_has_ended() -> None:
    short, long = spec(training={"schedule": "Constant"}), spec(training={"schedule": "Constant", "epochs": 9})
    assert differences(short, long, finished=False) == ()
    assert [(str(d), d.continuable) for d in differences(short, long, finished=True)] == [("training.epochs 3 → 9", True)]


def test_where_it_runs_makes_no_difference() -> None:
    assert told(pipeline={"stages": 3}, checkpoint={"keep": 9}, training={"threads": 4}, finished=True) == []


def test_which_may_go_on_with_another_value() -> None:
    longer = differences(spec(), spec(training={"epochs": 4, "learning_rate": 1.0, "warmup_steps": 2}), finished=False)
    assert [found.continuable for found in longer] == [True, True, True]
    other = differences(spec(), spec(training={"batch_size": 64, "seed": 2}, model={"dropout": 0.5}), finished=False)
    assert [found.continuable for found in other] == [False, False, False]


def test_many_differences_are_counted() -> None:
    training = {"learning_rate": 1.0, "weight_decay": 1.0, "adam_beta1": 0.5, "adam_beta2": 0.5, "adam_epsilon": 1.0}
    wrong = other_job("/out", spec(), spec(training={**training, "max_grad_norm": None, "seed": 7, "epochs": 9}), finished=False)
    assert wrong is not None
    assert wrong[0].startswith("/out has the results of another job (training.epochs 3 → 9, training.learningRate 5e-05 → 1.0, ")
    assert wrong[0].endswith(" and 2 more): choose another output.path")


def job(output: Path) -> LiveMigrationJob:
    return LiveMigrationJob.model_validate({"metadata": {"name": "a"}, "spec": {**BASE, "output": {"path": str(output)}}})


def test_a_folder_without_results_is_nobody_s(tmp_path: Path) -> None:
    mine = job(tmp_path / "out")
    layout = Layout.of(mine.spec)
    assert trained_job(layout) is None
    layout.run.mkdir(parents=True)
    layout.trained.write_text("{")
    layout.metrics.write_text("")
    layout.checkpoints.mkdir()
    assert trained_job(layout) is None, "what began and came to nothing"


@pytest.mark.parametrize("result", ["metrics.jsonl", "evaluation.json", "model/x", "checkpoints/step-000000001-v1/manifest.json"])
def test_results_are_of_the_job_that_was_written_down(tmp_path: Path, result: str) -> None:
    mine = job(tmp_path / "out")
    layout = Layout.of(mine.spec)
    (layout.output / result).parent.mkdir(parents=True)
    (layout.output / result).write_text("{}\n")
    assert trained_job(layout) is None, "nobody wrote down whose"
    layout.run.mkdir()
    (layout.run / "job.json").write_text(mine.to_json())
    assert trained_job(layout) == mine
    layout.trained.write_text(mine.model_copy(update={"metadata": mine.metadata.model_copy(update={"name": "b"})}).to_json())
    assert trained_job(layout) != mine


def test_a_part_that_could_not_write_itself_down_is_found_by_its_checkpoints(tmp_path: Path) -> None:
    first = job(tmp_path)
    layout = Layout.of(first.spec)
    layout.run.mkdir()
    local = layout.run / "job.json"

    def part(*steps: int) -> LiveMigrationJob:
        parts = [{"step": step, "state_digest": "a" * 32} for step in steps]
        return LiveMigrationJob.model_validate(
            {"metadata": {"name": "a"}, "spec": {**BASE, "output": {"path": str(tmp_path)}, "training": {"continues": parts}}}
        )

    def checkpoint(step: int) -> None:
        (layout.checkpoints / f"step-{step:09}-v1").mkdir(parents=True)
        (layout.checkpoints / f"step-{step:09}-v1" / "manifest.json").write_text("{}")

    layout.trained.write_text(first.to_json())
    local.write_text(part(60).to_json())
    checkpoint(60)
    (layout.checkpoints / "step-000000070-v1").mkdir()
    assert trained_job(layout) == first, "it has trained nothing yet"
    checkpoint(100)
    assert trained_job(layout) == part(60)
    layout.trained.write_text(part(60).to_json())
    local.write_text(part(60, 90).to_json())
    assert trained_job(layout) == part(60, 90)
    for older in (first, part(60), part(50), part(60, 50)):
        local.write_text(older.to_json())
        assert trained_job(layout) == part(60), "a record that was left behind"
    layout.trained.write_text(part(60, 90).to_json())
    namesake = part(60, 90)
    local.write_text(namesake.model_copy(update={"metadata": namesake.metadata.model_copy(update={"name": "b"})}).to_json())
    assert trained_job(layout) == part(60, 90), "the same part, under the name that it was written down with"
    local.write_text(part(70, 95).to_json())
    assert trained_job(layout) == part(60, 90), "another run's"
    local.write_text("{")
    assert trained_job(layout) == part(60, 90)


@pytest.mark.parametrize("content", [b"{", b"\xff" * 9, b"[" * (LARGEST_JOB + 1)])
def test_what_is_no_job_is_not_taken_for_one(tmp_path: Path, content: bytes) -> None:
    layout = Layout.of(job(tmp_path).spec)
    layout.metrics.write_text("{}\n")
    layout.trained.write_bytes(content)
    with pytest.raises(ResultsError, match=r"\.job\.json .*choose another output\.path"):
        trained_job(layout)
