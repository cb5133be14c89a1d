"""How the model is spread over ranks."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from lmj_api.base import Message
from lmj_api.cut import MOST_STAGES, Cut


class Strategy(StrEnum):
    """How ranks share the work. ``Pipeline``: each rank holds a part of the layers. ``Command``: each runs the script in ``command``."""

    PIPELINE = "Pipeline"
    COMMAND = "Command"

    @property
    def stateless(self) -> bool:
        """Whether its workers hold no state that the operator knows of: there is nothing to copy, and no checkpoint to look for."""
        return self is Strategy.COMMAND


class DataParallel(Message):
    """How many copies of the pipeline share the work of a step. The number of copies is not part of the result: losses and weights are the
    same to the bit.
    """

    shards: Annotated[int, Field(ge=1, le=1024)] = 1
    """Parts of a step's batch, of equal size, whose gradients are added in one fixed order whichever copy computes them. It is part of the
    result, and no job has more replicas than this. ``microBatches`` times ``training.gradientAccumulationSteps`` must be a multiple of it.
    Left out with ``strategy: Command``, whose script shares its work by itself."""
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Copies of the pipeline, each with a rank for each stage; at most ``shards``. A number that divides ``shards`` shares the work evenly.
    ``pipeline.stages`` times this is the number of ranks (the world size), at most 1,024."""

    min_replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Copies that are enough to train: when one is lost the others go on at once, and take it back when it is there again. With fewer than this,
    training waits."""
    max_replicas: Annotated[int, Field(ge=1, le=1024)] | None = None
    """The most copies that ``replicas`` may be set to, by a person or by an autoscaler: what the cluster has room for. Unset: ``shards``; with
    ``strategy: Command`` any number."""

    @property
    def most(self) -> int:
        """The most replicas that the job may be scaled to."""
        return self.max_replicas if self.max_replicas is not None else self.shards

    @model_validator(mode="after")
    def _a_shard_each(self) -> Self:
        if self.min_replicas > self.replicas:
            raise ValueError(f"minReplicas {self.min_replicas} is more than replicas {self.replicas}")
        if self.replicas > self.shards:
            raise ValueError(f"replicas {self.replicas} is more than shards {self.shards}: each replica needs a shard")
        if self.most > self.shards:
            raise ValueError(f"maxReplicas {self.most} is more than shards {self.shards}: each replica needs a shard")
        if self.replicas > self.most:
            raise ValueError(f"replicas {self.replicas} is more than maxReplicas {self.most}: raise maxReplicas first")
        return self


class Pipeline(Message):
    """The pipeline: its stages (one rank each in every replica) and the micro-batches that flow through them."""

    stages: Annotated[int, Field(ge=1, le=MOST_STAGES)] = 2
    """Number of stages, each a rank of every copy of the pipeline. It may change while the job trains, and is not part of the result: pods of
    the new stages copy the state of those that train, and take their place at a step boundary."""
    micro_batches: Annotated[int, Field(ge=1, le=1024)] = 4
    """Micro-batches in a batch; ``training.batchSize`` must be a multiple of it. More of them make the pipeline's bubble smaller."""
    first_in_halves: bool = True
    """The first micro-batch of each shard goes in halves: later stages wait half as long for it. False is faster for a job that has one stage for good. It is part of the result: it decides the bits of the gradient's sum."""
    layers: list[Annotated[int, Field(ge=1)]] | None = None
    """Encoder layers of each stage, first to last. Unset: balanced by cost. It may change as ``stages`` may."""

    @property
    def cut(self) -> Cut:
        """How the layers are cut."""
        return Cut(stages=self.stages, layers=self.layers)

    @model_validator(mode="after")
    def _one_number_a_stage(self) -> Self:
        if self.layers is not None and len(self.layers) != self.stages:
            raise ValueError(f"layers names {len(self.layers)} stages, stages is {self.stages}: give one number for each stage")
        return self
