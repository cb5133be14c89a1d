"""What a job's weights and results depend on: which checkpoints it may go on from, and whose results an output folder has.

Every field of the spec's parts named here is decided on; a test fails when a new one is not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pydantic.alias_generators import to_camel

from lmj_api.base import Message
from lmj_api.buckets import in_bucket
from lmj_api.spec.dataset import Dataset, Splits
from lmj_api.spec.job import JobSpec
from lmj_api.spec.model import Model, Task
from lmj_api.spec.pipeline import DataParallel, Pipeline
from lmj_api.spec.training import LearningRateSchedule, Optimizer, Training

Fields = dict[str, str]
"""Field: why it is where it is."""

MODEL: Fields = {
    "source": "the initial weights; by its last part when it is a folder, of a volume or a bucket, so that a job may move to another place",
    "revision": "the initial weights",
    "scratch": "sizes of all tensors",
    "python": "the model and the loss; by the file's last part and the class",
    "python_sha256": "the model and the loss",
    "task": "the head and the loss",
    "labels": "the meaning of the head's rows",
    "dropout": "the forward pass",
    "lora": "which weights are trained, and the forward pass",
}
DATASET: Fields = {
    "source": "the rows; by its last part when it is a file or folder, of a volume or a bucket",
    "config": "the rows",
    "revision": "the rows",
    "text": "the input",
    "label": "the target",
    "splits": "which rows are trained on, see SPLITS",
    "max_samples": "which rows are trained on; its test cap only where test rows are cut off the training rows",
    "max_length": "the tokens",
    "packing": "the rows",
    "mlm_probability": "which tokens are hidden",
    "streaming": "the order of the rows; by its row groups, because more memory changes nothing",
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
    "group_by_length": "the rows of a step",
    "learning_rate": "the update",
    "schedule": "the update",
    "schedule_options": "the update",
    "optimizer": "the update",
    "momentum": "the update",
    "warmup_steps": "the update",
    "warmup_ratio": "the update",
    "weight_decay": "the update",
    "adam_beta1": "the update",
    "adam_beta2": "the update",
    "adam_epsilon": "the update",
    "max_grad_norm": "the update",
    "label_smoothing": "the loss",
    "eval_steps": "not the weights, but which of them are the best, and when training ends",
    "metric_for_best_model": "not the weights, but which of them are the best: scores in manifests must stay comparable",
    "early_stopping": "when training ends, which is counted in manifests",
    "seed": "random weights, order, dropout",
    "precision": "forward and backward",
    "continues": "the state that it goes on from",
}
DATA_PARALLEL: Fields = {"shards": "the order of the gradient's sum, which changes its bits, and the masks of dropout"}
PIPELINE: Fields = {
    "micro_batches": "the order of the gradient's sum, which changes its bits, and the masks of dropout",
    "first_in_halves": "as micro_batches",
}

_UNSET = ("eval_steps", "metric_for_best_model", "early_stopping")
"""Fields of ``training`` that count where they are set."""

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
    DataParallel: {
        "replicas": "who computes a shard, not what it is",
        "min_replicas": "how many train: none of the result",
        "max_replicas": "how many may train: none of the result",
    },
    JobSpec: {
        "strategy": "a folder of another strategy is refused as a whole, see differences",
        "command": "the state of a script is its own",
        "checkpoint": "when state is saved, not what it is",
        "output": "where results go",
        "storage": "where results go and data lies",
        "network": "who may reach the pods",
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


CONTINUABLE = frozenset(
    {
        "epochs",
        "max_steps",
        "learning_rate",
        "schedule",
        "schedule_options",
        "warmup_steps",
        "warmup_ratio",
        "eval_steps",
        "early_stopping",
    }
)
"""Fields of ``training`` that may be others from some step on: how long, with which learning rate, and when it is evaluated. The rows of each
step stay the same."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that two jobs have with different values."""

    path: str
    """In the spec, as in YAML."""
    old: str
    new: str
    continuable: bool
    """A run may go on with the new value from where it is."""

    def __str__(self) -> str:
        return f"{self.path} {self.old} → {self.new}"


def state_fields(spec: JobSpec) -> dict[str, Any]:
    """All that the state of training depends on.

    Equal for two specs exactly if the state after step k of one is the state after step k of the other (up to rounding, where
    ``IGNORED`` says so).
    """
    if spec.strategy.stateless:
        return {"strategy": spec.strategy.value}  # the state is the script's own, and its own to refuse
    return {
        "model": _model(spec.model),
        "dataset": _dataset(spec.dataset, spec.model.task),
        "training": _training(spec.training),
        "pipeline": _pipeline(spec.pipeline),
        **_data_parallel(spec.data_parallel),
    }


def differences(old: JobSpec, new: JobSpec, *, finished: bool) -> tuple[Difference, ...]:
    """Why ``new`` may not go on in the place of ``old``; none: it may. ``finished``: what the results depend on counts too.

    A script may go on with other arguments, as it could without anybody watching; once it has finished they say that there is more to do.
    """
    if old.strategy is not new.strategy:
        return (Difference("strategy", old.strategy.value, new.strategy.value, continuable=False),)
    if old.command is not None and new.command is not None:
        if not finished or old.command.args == new.command.args:
            return ()
        return (Difference("command.args", _shown(old.command.args), _shown(new.command.args), continuable=True),)
    before, after = _compared(old, finished), _compared(new, finished)
    if finished and not new.output.int8:
        del after["output"]["int8"]  # a model in 8 bits that nobody asks for may be there
    return tuple(_differences("", before, after))


def _compared(spec: JobSpec, finished: bool) -> dict[str, Any]:
    fields = state_fields(spec)
    for name in ("lora", "python", "python_sha256"):
        fields["model"].setdefault(name, None)
    fields["training"].setdefault("continues", [])
    fields["training"].setdefault("label_smoothing", 0.0)
    fields["training"].setdefault("group_by_length", False)
    for name in _UNSET:
        fields["training"].setdefault(name, None)
    fields["training"].setdefault("schedule_options", {})
    fields["training"] = {"optimizer": Optimizer.ADAMW.value, "momentum": 0.0} | fields["training"]
    fields["dataset"].setdefault("packing", False)
    fields["dataset"].setdefault("streaming", None)
    fields["pipeline"].setdefault("first_in_halves", True)
    fields.setdefault("data_parallel", {"shards": 1})
    if finished:
        test = {"test": _name(spec.dataset.splits.test)}
        caps = {"test": spec.dataset.max_samples.test}
        fields["dataset"]["splits"] |= test
        fields["dataset"]["max_samples"] |= caps
        fields["training"] |= {"epochs": spec.training.epochs, "max_steps": spec.training.max_steps}
        fields["output"] = {"weights": spec.output.weights.value, "int8": spec.output.int8}
    return fields


def _differences(above: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    # A field that counts in one of them alone does so because of another field, which differs too.
    for name in (name for name in old if name in new and old[name] != new[name]):
        path, before, after = f"{above}{to_camel(name)}", old[name], new[name]
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differences(f"{path}.", before, after)
        else:
            yield Difference(path, _shown(before), _shown(after), _is_continuable(path))


def _is_continuable(path: str) -> bool:
    part, _, rest = path.partition(".")
    return part == "training" and rest.partition(".")[0] in map(to_camel, CONTINUABLE)


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "set"
    if isinstance(value, list):
        # A part of a run is one by its last step; its digest says nothing to anybody.
        value = ", ".join(f"from step {item['step']}" if isinstance(item, Mapping) else str(item) for item in value) or "none"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _pick(part: Message, fields: Fields) -> dict[str, Any]:
    return part.model_dump(mode="json", include=set(fields))


def _name(source: str | None) -> str | None:
    """``source`` by name: a path (a job's paths are absolute, a hub id never is) and a place in object storage by its last part."""
    if source is not None and in_bucket(source):
        return source.rstrip("/").rpartition("/")[2]
    return PurePath(source).name if source is not None and PurePath(source).is_absolute() else source


def _model(model: Model) -> dict[str, Any]:
    fields = _pick(model, MODEL) | {"source": _name(model.source), "python": _name(model.python)}
    if model.python is None:
        del fields["python"], fields["python_sha256"]  # a job without one is what it was before there was any
    if model.lora is None:
        del fields["lora"]  # a job without it is what it was before there was any
    elif model.lora.target_modules is not None:
        fields["lora"]["target_modules"] = sorted(set(model.lora.target_modules))
    return fields


def _dataset(dataset: Dataset, task: Task) -> dict[str, Any]:
    splits = _pick(dataset.splits, SPLITS)
    splits |= {"train": _name(dataset.splits.train), "validation": _name(dataset.splits.validation)}
    samples = dataset.max_samples.model_dump(mode="json")
    if not dataset.splits.test_fraction:
        del samples["test"]  # test rows come from elsewhere: how many there are changes nothing here
    fields = _pick(dataset, DATASET) | {"source": _name(dataset.source), "splits": splits, "max_samples": samples}
    if dataset.packing:
        fields["packed"] = "whole texts"  # while a text was cut before it was packed, they were other rows
    else:
        del fields["packing"]  # a dataset without it is what it was before there was any
    if dataset.streaming is None:
        del fields["streaming"]  # as without packing
    else:
        fields["streaming"] = {"row_groups": dataset.streaming.row_groups}
    if task is Task.MASKED_LM:
        fields["mlm_probability"] = dataset.masked_part
    else:
        del fields["mlm_probability"]
    return fields


def _pipeline(pipeline: Pipeline) -> dict[str, Any]:
    """Halves count where there are none: the digest of all jobs before is without the field."""
    fields = _pick(pipeline, PIPELINE)
    if pipeline.first_in_halves:
        del fields["first_in_halves"]
    return fields


def _data_parallel(data_parallel: DataParallel) -> dict[str, Any]:
    # A job of one shard is what it was before there were any.
    return {} if data_parallel.shards == 1 else {"data_parallel": _pick(data_parallel, DATA_PARALLEL)}


def _training(training: Training) -> dict[str, Any]:
    fields = _pick(training, TRAINING)
    if training.schedule.endless and not training.warmup_ratio:
        # No step's learning rate depends on how many follow: such a job may be made longer and go on.
        del fields["epochs"], fields["max_steps"]
    if not training.continues:
        del fields["continues"]  # a run that goes on from none is what it was before any could
    if not training.label_smoothing:
        del fields["label_smoothing"]  # one without it is what it was before there was any
    if not training.group_by_length:
        del fields["group_by_length"]  # as without label smoothing
    del fields["schedule_options"]
    if training.schedule is LearningRateSchedule.COSINE_WITH_RESTARTS:
        fields["schedule_options"] = {"cycles": training.cycles}
    elif training.schedule is LearningRateSchedule.POLYNOMIAL:
        fields["schedule_options"] = {"power": training.power, "end_learning_rate": training.end_learning_rate}
    if training.optimizer is Optimizer.ADAMW:
        del fields["optimizer"], fields["momentum"]  # as before there was another
    for name in _UNSET:
        if fields[name] is None:
            del fields[name]  # as without label smoothing
    return fields
