"""The digest of all that a job's weights depend on: a checkpoint is resumed only under the digest it was written with.

Every field of the spec's parts named here is decided on; a test fails when a new one is not.
"""

import json
from pathlib import PurePath
from typing import Any

import xxhash

from lmj_api.base import Message
from lmj_api.spec import Dataset, JobSpec, LearningRateSchedule, Model, Pipeline, Splits, Training

Fields = dict[str, str]
"""Field: why it is where it is."""

MODEL: Fields = {
    "source": "the initial weights; by its last part when it is a folder, so that a job may move to another place",
    "revision": "the initial weights",
    "scratch": "sizes of all tensors",
    "task": "the head and the loss",
    "labels": "the meaning of the head's rows",
    "dropout": "the forward pass",
    "lora": "which weights are trained, and the forward pass",
}
DATASET: Fields = {
    "source": "the rows; by its last part when it is a file or folder",
    "config": "the rows",
    "revision": "the rows",
    "text": "the input",
    "label": "the target",
    "splits": "which rows are trained on, see SPLITS",
    "max_samples": "which rows are trained on; its test cap only where test rows are cut off the training rows",
    "max_length": "the tokens",
}
SPLITS: Fields = {
    "train": "the rows",
    "validation": "not the weights, but which of them are the best: accuracies in manifests must stay comparable",
    "validation_fraction": "takes rows from training",
    "test_fraction": "takes rows from training",
}
TRAINING: Fields = {
    "epochs": "length of the learning rate schedule, where it has one",
    "max_steps": "length of the learning rate schedule, where it has one",
    "batch_size": "the rows of a step",
    "gradient_accumulation_steps": "the rows of a step",
    "learning_rate": "the update",
    "schedule": "the update",
    "warmup_steps": "the update",
    "warmup_ratio": "the update",
    "weight_decay": "the update",
    "adam_beta1": "the update",
    "adam_beta2": "the update",
    "adam_epsilon": "the update",
    "max_grad_norm": "the update",
    "seed": "random weights, order, dropout",
    "precision": "forward and backward",
}
PIPELINE: Fields = {"micro_batches": "the order of the gradient's sum, which changes its bits, and the masks of dropout"}

IGNORED: dict[type[Message], Fields] = {
    Model: {},
    Dataset: {},
    Splits: {"test": "rows of another split: nothing of the weights, nor of which are best"},
    Training: {
        "gradient_checkpointing": "the same arithmetic done twice: a job short of memory may turn it on and go on",
        "threads": "rounding alone; a job may go on with another number of cores",
        "device": "rounding alone; a job may go on on another device",
    },
    Pipeline: {
        "stages": "tensors are named by layer: any number of stages loads them",
        "layers": "as stages",
    },
    JobSpec: {
        "strategy": "how the work is shared, not what it is",
        "checkpoint": "when state is saved, not what it is",
        "output": "where results go",
        "storage": "where results go and data lies",
        "recovery": "what happens on failure",
        "migration": "where ranks run",
        "placement": "where ranks run",
        "template": "where ranks run",
        "suspend": "when it runs",
        "active_deadline_seconds": "when it runs",
        "ttl_seconds_after_finished": "when it goes",
        "clean_pod_policy": "what goes",
    },
}
"""What the digest leaves out, and why that is right."""


def state_digest(spec: JobSpec) -> str:
    """Digest of the model, data and hyper-parameters of ``spec``, 32 hex digits.

    Equal for two specs exactly if the state after step k of one is the state after step k of the other (up to rounding, where
    ``IGNORED`` says so).
    """
    value = {
        "format": "lmj.state/1",
        "model": _model(spec.model),
        "dataset": _dataset(spec.dataset),
        "training": _training(spec.training),
        "pipeline": _pick(spec.pipeline, PIPELINE),
    }
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return xxhash.xxh3_128(canonical.encode()).hexdigest()


def _pick(part: Message, fields: Fields) -> dict[str, Any]:
    return part.model_dump(mode="json", include=set(fields))


def _name(source: str | None) -> str | None:
    """``source`` by name: a path (a job's paths are absolute, a hub id never is) by its last part."""
    return PurePath(source).name if source is not None and PurePath(source).is_absolute() else source


def _model(model: Model) -> dict[str, Any]:
    fields = _pick(model, MODEL) | {"source": _name(model.source)}
    if model.lora is None:
        del fields["lora"]  # a job without it is what it was before there was any
    elif model.lora.target_modules is not None:
        fields["lora"]["target_modules"] = sorted(set(model.lora.target_modules))
    return fields


def _dataset(dataset: Dataset) -> dict[str, Any]:
    splits = _pick(dataset.splits, SPLITS)
    splits |= {"train": _name(dataset.splits.train), "validation": _name(dataset.splits.validation)}
    samples = dataset.max_samples.model_dump(mode="json")
    if not dataset.splits.test_fraction:
        del samples["test"]  # test rows come from elsewhere: how many there are changes nothing here
    return _pick(dataset, DATASET) | {"source": _name(dataset.source), "splits": splits, "max_samples": samples}


def _training(training: Training) -> dict[str, Any]:
    fields = _pick(training, TRAINING)
    if training.schedule is LearningRateSchedule.CONSTANT and not training.warmup_ratio:
        # No step's learning rate depends on how many follow: such a job may be made longer and go on.
        del fields["epochs"], fields["max_steps"]
    return fields
