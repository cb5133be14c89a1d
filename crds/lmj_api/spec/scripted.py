"""What a job of ``strategy: Command`` does not say, because its script does: what stands there instead, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lmj_api.base import Message
from lmj_api.spec.checkpoint import Checkpoint
from lmj_api.spec.dataset import NO_DATASET
from lmj_api.spec.migration import Migration
from lmj_api.spec.model import NO_MODEL
from lmj_api.spec.network import Network
from lmj_api.spec.output import Output
from lmj_api.spec.pipeline import DataParallel, Pipeline, Strategy
from lmj_api.spec.recovery import Recovery
from lmj_api.spec.training import Training
from lmj_api.view import MOST_RANKS

if TYPE_CHECKING:
    from lmj_api.spec.job import JobSpec

ONE_STAGE: Final = Pipeline(stages=1)
"""The pipeline of such a job: each rank is a pod that runs the script."""
NOT_SAID: Final = {"model": NO_MODEL, "dataset": NO_DATASET}

PARTS: Final[Mapping[str, tuple[type[Message], str]]] = {
    "pipeline": (Pipeline, "each rank is a pod that runs the script, and dataParallel.replicas their number: leave pipeline out"),
    "training": (Training, "the script takes its values from command.args, and threads from command.threads: leave training out"),
    "checkpoint": (Checkpoint, "the script saves its own checkpoints, in command.checkpoints: leave checkpoint out"),
}
"""Parts that keep their defaults, and what to do instead."""
_SAVES_ITSELF = "the script saves and reports its results itself: leave it out"
FIELDS: Final[Mapping[str, tuple[type[Message], Mapping[str, str]]]] = {
    "output": (Output, dict.fromkeys(("weights", "int8", "tensorboard", "trackers", "hub"), _SAVES_ITSELF)),
    "recovery": (
        Recovery,
        {
            "hot_standby": "nobody can follow what a script computes: leave it out",
            "memory_snapshot": "the state of a script is its own, and so are snapshots of it: leave it out",
            "straggler": "nobody knows how long each rank of a script computes: leave it out",
        },
    ),
    "migration": (Migration, {"bandwidth_mbps": "nothing is copied when a script moves: leave it out"}),
    "network": (Network, {"encryption": "a script makes its connections itself, which no relay knows: leave it out"}),
}
"""Single fields that keep their defaults, by part."""
SHARES_ITSELF: Final = "the script shares its work among the processes itself: leave it out"


def completed(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """``fields`` of a spec, as a document or as arguments, with what a job of a script does not say; those of any other job as they are.

    Raises ValueError when ``command`` is there without its strategy, or with a model or a dataset.
    """
    strategy = fields.get("strategy", Strategy.PIPELINE)
    if strategy == Strategy.PIPELINE and fields.get("command") is not None:
        raise ValueError("command is the script of strategy Command: add strategy: Command, or leave command out")
    if strategy != Strategy.COMMAND:
        # A strategy that is misspelt is told alone.
        return {**NOT_SAID, **fields} if "command" in fields and strategy != Strategy.PIPELINE else fields
    for name, nothing in NOT_SAID.items():
        if name in fields and fields[name] != nothing:
            raise ValueError(f"{name}: the script of strategy Command has its own: leave {name} out")
    alias = "data_parallel" if "data_parallel" in fields else "dataParallel"
    parts = {"pipeline": _one_stage(fields.get("pipeline", ONE_STAGE)), alias: _counted(fields.get(alias, {}))}
    return {**fields, **NOT_SAID, **parts}


def _one_stage(pipeline: Any) -> Any:
    """``pipeline`` of one stage where it is none, or the default that a server fills in."""
    if pipeline == Pipeline():
        return ONE_STAGE
    if isinstance(pipeline, Mapping) and pipeline.get("layers") is None and pipeline.get("stages", 2) in (1, 2):
        return {**pipeline, "stages": 1}
    return pipeline


def _counted(parts: Any) -> Any:
    """``parts`` with as many shards as the job may have replicas. Raises ValueError when it says another number of them."""
    if isinstance(parts, DataParallel):
        return parts.model_copy(update={"shards": max(parts.replicas, parts.max_replicas or 1)})
    if not isinstance(parts, Mapping):
        return parts
    shards = parts.get("shards", 1)
    if isinstance(shards, int) and shards != 1:
        raise ValueError(f"dataParallel.shards {shards}: {SHARES_ITSELF}")
    counts = [parts.get(name) for name in ("replicas", "maxReplicas", "max_replicas")]
    most = max((count for count in counts if isinstance(count, int)), default=1)
    return {**parts, "shards": min(max(most, 1), MOST_RANKS)} if shards == 1 else parts


def forget_filled_in(spec: JobSpec) -> None:
    """Have what :func:`completed` put into ``spec`` count as not set, so that a file that is written of it does not say it."""
    spec.data_parallel.__pydantic_fields_set__.discard("shards")
    filled_in = {*NOT_SAID, "pipeline"} if spec.data_parallel.model_fields_set else {*NOT_SAID, "pipeline", "data_parallel"}
    spec.__pydantic_fields_set__.difference_update(filled_in)


def unfit(spec: JobSpec) -> str | None:
    """Why ``spec``, of a script, cannot be, and what to do; None: it can."""
    if spec.command is None:
        return "command is missing: strategy Command runs the script in it, as in command: {args: [train.py]}"
    for name, (kind, why) in PARTS.items():
        for field in _changed(getattr(spec, name), ONE_STAGE if kind is Pipeline else kind()):
            return f"{name}.{field}: {why}"
    for name, (kind, fields) in FIELDS.items():
        for field, why in fields.items():
            info = kind.model_fields[field]
            if getattr(getattr(spec, name), field) != info.default:
                return f"{name}.{info.alias}: {why}"
    return None


def _changed(part: Message, default: Message) -> Iterator[str]:
    """The fields of ``part`` that are not as in ``default``, as users write them."""
    for name, info in type(part).model_fields.items():
        if getattr(part, name) != getattr(default, name):
            yield str(info.alias)
