"""What a checkpoint belongs to."""

from typing import Any

import pytest

from lmj_api.base import Message
from lmj_api.identity import DATA_PARALLEL, DATASET, IGNORED, MODEL, PIPELINE, SPLITS, TRAINING, differences
from lmj_api.spec import DataParallel, Dataset, JobSpec, Model, Pipeline, Splits, Training
from lmj_trainer.checkpoint.identity import state_digest

BASE: dict[str, Any] = {
    "model": {"source": "/jobs/a/model"},
    "dataset": {"source": "/jobs/a/reviews.csv", "text": ["text"], "label": "label"},
    "output": {"path": "/jobs/a/out"},
}


def spec(**parts: dict[str, Any] | bool) -> JobSpec:
    value = {key: dict(part) for key, part in BASE.items()}
    for key, part in parts.items():
        value[key] = {**value.get(key, {}), **part} if isinstance(part, dict) else part  # type: ignore[assignment]
    return JobSpec.model_validate(value)


def digest(**parts: dict[str, Any] | bool) -> str:
    return state_digest(spec(**parts))


@pytest.mark.parametrize(
    ("part", "depends"),
    [
        (Model, MODEL),
        (Dataset, DATASET),
        (Splits, SPLITS),
        (Training, TRAINING),
        (Pipeline, PIPELINE),
        (DataParallel, DATA_PARALLEL),
    ],
)
def test_every_field_is_decided_on(part: type[Message], depends: dict[str, str]) -> None:
    assert set(depends) | set(IGNORED[part]) == set(part.model_fields)
    assert not set(depends) & set(IGNORED[part])


def test_every_part_is_decided_on() -> None:
    assert {"model", "dataset", "training", "pipeline", "data_parallel"} | set(IGNORED[JobSpec]) == set(JobSpec.model_fields)


@pytest.mark.parametrize(
    "parts",
    [
        {"pipeline": {"stages": 3}},
        {"pipeline": {"stages": 2, "layers": [1, 3]}},
        {"checkpoint": {"every_steps": 7}},
        {"output": {"path": "/elsewhere"}},
        {"recovery": {"max_restarts": 1}},
        {"training": {"threads": 4}},
        {"training": {"device": "CPU"}},
        {"training": {"gradient_checkpointing": True}},
        {"suspend": True},
        {"model": {"source": "/moved/to/model"}, "dataset": {"source": "/moved/to/reviews.csv"}},
        {"model": {"source": "s3://models/base/model"}, "dataset": {"source": "azblob://rows/reviews.csv"}},
        {"dataset": {"splits": {"test": "/jobs/a/test.csv"}, "max_samples": {"test": 10}}},
        {"training": {"learning_rate": 0.00005}},
    ],
)
def test_goes_on(parts: dict[str, Any]) -> None:
    assert digest(**parts) == digest()
    assert not differences(spec(), spec(**parts), finished=False)


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"source": "/jobs/a/another"}},
        {"model": {"source": "model/model"}},
        {"model": {"source": "s3://models/another"}},
        {"dataset": {"source": "s3://rows/other.csv"}},
        {"model": {"labels": ["a", "b"]}},
        {"model": {"dropout": 0.2}},
        {"model": {"lora": {}}},
        {"dataset": {"source": "/jobs/a/other.csv"}},
        {"dataset": {"max_length": 64}},
        {"dataset": {"max_samples": {"train": 10}}},
        {"dataset": {"splits": {"validation_fraction": 0.1}}},
        {"dataset": {"splits": {"validation": "/jobs/a/v.csv"}}},
        {"training": {"seed": 1}},
        {"training": {"epochs": 4}},
        {"training": {"batch_size": 64}},
        {"training": {"learning_rate": 1e-4}},
        {"training": {"max_grad_norm": None}},
        {"training": {"precision": "BFloat16"}},
        {"training": {"schedule": "Constant"}},
        {"training": {"continues": [{"step": 5, "state_digest": "0" * 32}]}},
        {"pipeline": {"micro_batches": 8}},
    ],
)
def test_is_another_training(parts: dict[str, Any]) -> None:
    assert digest(**parts) != digest()
    assert differences(spec(), spec(**parts), finished=False), "and somebody is told why"


def test_a_test_cap_counts_where_test_rows_are_cut_off() -> None:
    cut = {"splits": {"test_fraction": 0.1}}
    assert digest(dataset=cut) != digest(dataset={**cut, "max_samples": {"test": 5}})


def test_a_constant_learning_rate_may_go_on_for_longer() -> None:
    constant = {"schedule": "Constant"}
    assert digest(training=constant) == digest(training={**constant, "epochs": 9, "max_steps": 50})
    assert digest(training={**constant, "warmup_ratio": 0.1}) != digest(training={**constant, "warmup_ratio": 0.1, "epochs": 9})


def test_adapters_are_what_they_say() -> None:
    assert digest(model={"lora": {"r": 8}}) == digest(model={"lora": {}})
    assert digest(model={"lora": {"target_modules": ["a", "b"]}}) == digest(model={"lora": {"target_modules": ["b", "a"]}})
    for other in ({"r": 4}, {"alpha": 1}, {"dropout": 0.1}, {"target_modules": ["query"]}):
        assert digest(model={"lora": other}) != digest(model={"lora": {}})


def test_is_stable() -> None:
    """A change of this value makes every existing checkpoint useless: then the format's number must change, knowingly."""
    assert digest() == "da4fc6e0a304bb44765a375ac56fdc07"
