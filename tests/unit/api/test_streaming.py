"""A job whose training rows are read while it trains: what its spec may say."""

from pathlib import Path
from typing import Any

import pytest

from lmj_api.identity import differences
from lmj_api.load import SpecError, load_job
from lmj_api.schema import RULES
from lmj_api.spec import LiveMigrationJob, Task
from lmj_api.spec.streaming import FROM_ROWS
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.task.registry import TASKS


def document(**spec: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "model": {"source": "bert-base-uncased", "labels": ["a", "b"]},
        "dataset": {"source": "train", "text": ["text"], "label": "label", "streaming": {}},
        "output": {"path": "runs/x"},
    }
    for name, value in spec.items():
        whole[name] = {**whole.get(name, {}), **value}
    return {"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "streamed"}, "spec": whole}


def load(*, here: bool = True, **spec: Any) -> LiveMigrationJob:
    return load_job(document(**spec), base=Path("/data"), here=here)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("train", "/data/train"),
        ("rows/train", "/data/rows/train"),
        ("train.parquet", "/data/train.parquet"),
        ("/rows", "/rows"),
        ("s3://rows/train/", "s3://rows/train"),
    ],
)
def test_the_source_is_a_place_and_never_a_name_of_the_hub(source: str, place: str, here: bool) -> None:
    job = load(here=here, dataset={"source": source})
    assert job.spec.dataset.source == place
    assert job.spec.dataset.streaming is not None
    assert (job.spec.dataset.streaming.row_groups, job.spec.dataset.streaming.memory_mb) == (16, 1024)
    assert LiveMigrationJob.model_validate_json(job.to_json()) == job


def test_without_it_a_name_may_be_of_the_hub() -> None:
    assert load(dataset={"source": "rows/train", "streaming": None}).spec.dataset.source == "rows/train"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "model.scratch": ({"model": {"source": None, "scratch": {}}}, "its vocabulary is learned from all training texts"),
    "model.python": (
        {"model": {"source": None, "labels": None, "python": "t.py:T"}, "dataset": {"text": None, "label": None}},
        "the class gets whole rows",
    ),
    "model.task": (
        {"model": {"task": "QuestionAnswering", "labels": None}, "dataset": {"text": ["question", "text"]}},
        "a long row becomes several",
    ),
    "model.labels": ({"model": {"labels": None}}, "is missing: with dataset.streaming nobody looks through all rows"),
    "dataset.packing": (
        {"model": {"task": "CausalLM", "labels": None}, "dataset": {"label": None, "packing": True}},
        "how many samples there are",
    ),
    "dataset.config": ({"dataset": {"config": "sst2"}}, "it is of a hub's dataset"),
    "dataset.revision": ({"dataset": {"revision": "main"}}, "it is of a hub's dataset"),
    "dataset.splits.train": ({"dataset": {"splits": {"train": "other.parquet"}}}, "dataset.source has the training rows"),
    "dataset.splits.validationFraction": (
        {"dataset": {"splits": {"validationFraction": 0.1}}},
        "no rows are cut off; name a file in dataset.splits.validation",
    ),
    "dataset.splits.testFraction": (
        {"dataset": {"splits": {"testFraction": 0.1}}},
        "no rows are cut off; name a file in dataset.splits.test",
    ),
    "dataset.maxSamples.train": ({"dataset": {"maxSamples": {"train": 10}}}, "all row groups are read"),
    "training.groupByLength": ({"training": {"groupByLength": True}}, "how long rows are is known when all are tokenized"),
}


def test_every_field_that_does_not_go_with_it_is_tried_here_and_is_a_rule_of_the_server() -> None:
    assert REFUSED.keys() == FROM_ROWS.keys()
    messages = {message for _, message in RULES[""]}
    assert {f"{name} {why}" for name, why in FROM_ROWS.items()} <= messages


@pytest.mark.parametrize("field", REFUSED)
def test_what_needs_all_rows_is_refused(field: str) -> None:
    parts, why = REFUSED[field]
    with pytest.raises(SpecError) as raised:
        load(here=False, **parts)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"spec: {field} ")
    assert why in line
    # It is streaming that refuses it.
    load(here=False, **{**parts, "dataset": {**parts.get("dataset", {}), "streaming": None}})


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.JSONL", "s3://rows/rows.json"])
def test_files_that_cannot_be_read_by_parts_are_told_how_to_become_some_that_can(name: str) -> None:
    with pytest.raises(SpecError, match="streaming reads Parquet by row groups: write the rows as Parquet"):
        load(dataset={"source": name})


@pytest.mark.parametrize("task", [task for task in Task if task is not Task.QUESTION_ANSWERING])
def test_all_other_tasks_may_stream(task: Task) -> None:
    model = {"task": task.value, "labels": ["a", "b"] if task.named else None}
    assert load(model=model, dataset={"label": "label" if task.labelled else None}).spec.model.task is task


def test_the_contract_knows_which_tasks_make_several_samples_of_a_row() -> None:
    assert {task: task.windowed for task in Task} == {name: task.windows for name, task in TASKS.items()}


def test_a_run_goes_on_with_more_memory_and_with_no_other_window() -> None:
    job, plain = load(), load(dataset={"streaming": None})
    roomy, wide = (load(dataset={"streaming": part}) for part in ({"memoryMb": 4096}, {"rowGroups": 8}))
    moved = load(dataset={"source": "s3://rows/train"})
    assert state_digest(job.spec) == state_digest(roomy.spec) == state_digest(moved.spec)
    assert len({state_digest(each.spec) for each in (job, plain, wide)}) == 3
    (difference,) = differences(job.spec, wide.spec, finished=False)
    assert str(difference) == "dataset.streaming.rowGroups 16 → 8"
    (difference,) = differences(plain.spec, job.spec, finished=False)
    assert (difference.path, difference.continuable) == ("dataset.streaming", False)
