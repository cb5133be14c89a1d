"""The job: one YAML file, the same on a laptop and on a cluster."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lmj_api.base import Message
from lmj_api.cut import Cut
from lmj_api.run import UUID, Run
from lmj_api.spec.checkpoint import Checkpoint
from lmj_api.spec.command import Command
from lmj_api.spec.dataset import Dataset, MaxSamples, Splits
from lmj_api.spec.hub import HubContent
from lmj_api.spec.lifecycle import CleanPodPolicy
from lmj_api.spec.metric import Metric
from lmj_api.spec.migration import Migration
from lmj_api.spec.model import Model, Task
from lmj_api.spec.network import Network
from lmj_api.spec.output import Output
from lmj_api.spec.pipeline import DataParallel, Pipeline, Strategy
from lmj_api.spec.placement import Placement
from lmj_api.spec.recovery import Recovery
from lmj_api.spec.scripted import NOT_SAID, completed, forget_filled_in, unfit
from lmj_api.spec.storage import Storage
from lmj_api.spec.streaming import unfit_for_streaming
from lmj_api.spec.training import Training
from lmj_api.topology import Topology
from lmj_api.view import MOST_RANKS


class JobSpec(Message):
    """What to train, on what, how, and what to do when things fail."""

    strategy: Strategy = Strategy.PIPELINE
    """How ranks share the work."""
    pipeline: Pipeline = Pipeline()
    """Stages and micro-batches."""
    data_parallel: DataParallel = DataParallel()
    """Copies of the pipeline, and the parts of a batch that they share."""
    model: Model
    """The model."""
    dataset: Dataset
    """The dataset."""
    training: Training = Training()
    """Hyper-parameters."""
    command: Command | None = None
    """The script of ``strategy: Command``, which has a model and data of its own: ``model`` and ``dataset`` are left out then."""
    checkpoint: Checkpoint = Checkpoint()
    """Checkpoints."""
    output: Output
    """Where the results go."""
    storage: Storage = Storage()
    """Volumes of the pods on a cluster."""
    network: Network = Network()
    """How pods talk to each other."""
    recovery: Recovery = Recovery()
    """What happens when something fails."""
    migration: Migration = Migration()
    """How ranks move between nodes."""
    placement: Placement = Placement()
    """Which nodes ranks run on."""
    template: dict[str, Any] | None = None
    """Overrides merged into each rank's pod (a pod template: ``metadata`` and ``spec``)."""
    suspend: bool = False
    """Take a checkpoint, stop, and wait until this is false again."""
    active_deadline_seconds: Annotated[int, Field(ge=1)] | None = None
    """The job fails when it has been active for longer."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """Delete the finished job after so many seconds. Null: keep it."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Pods deleted when the job ends."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, fields: Any) -> Any:
        return completed(fields) if isinstance(fields, Mapping) else fields

    @model_validator(mode="after")
    def _fits_its_script(self) -> Self:
        if self.strategy is Strategy.COMMAND:
            forget_filled_in(self)
            if (reason := unfit(self)) is not None:
                raise ValueError(reason)
        return self

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        if self.strategy is Strategy.COMMAND:
            for name in NOT_SAID:
                fields.pop(name, None)
            parts = fields.get("dataParallel", fields.get("data_parallel"))
            if parts is not None and "shards" in parts:
                parts["shards"] = 1
        return fields

    @model_validator(mode="after")
    def _batches_divide(self) -> Self:
        if self.strategy is Strategy.COMMAND:
            return self
        size, parts = self.training.batch_size, self.pipeline.micro_batches
        if size % parts:
            raise ValueError(f"training.batchSize {size} is not a multiple of pipeline.microBatches {parts}")
        pieces, shards = parts * self.training.gradient_accumulation_steps, self.data_parallel.shards
        if pieces % shards:
            raise ValueError(
                f"the {pieces} micro-batches of a step (pipeline.microBatches times training.gradientAccumulationSteps) cannot be shared"
                f" among dataParallel.shards {shards}: make them a multiple of it"
            )
        return self

    @model_validator(mode="after")
    def _whole_rows(self) -> Self:
        dataset = self.dataset
        if self.strategy is Strategy.COMMAND:
            return self
        if self.model.python is None:
            if dataset.text is None:
                raise ValueError("dataset.text is missing: name the column of the text, or the two columns of a pair")
            return self
        for name, value in (("text", dataset.text), ("label", dataset.label), ("packing", dataset.packing or None)):
            if value is not None:
                raise ValueError(f"dataset.{name}: the class in model.python gets all columns of a row: leave it out")
        if self.model.is_script:
            self._require_rows_of_script()
        training = self.training
        if dataset.mlm_probability is not None:
            raise ValueError("dataset.mlmProbability: what is hidden of a row is up to the class in model.python: leave it out")
        if training.label_smoothing:
            raise ValueError("training.labelSmoothing: the loss is that of the class in model.python: leave it out")
        if self.output.int8:
            raise ValueError("output.int8 is for models of transformers: with model.python leave it out")
        if training.group_by_length:
            raise ValueError(
                "training.groupByLength: rows of the class in model.python have no tokens to be counted: leave it out"
            )
        if training.metric_for_best_model not in (None, Metric.LOSS):
            raise ValueError(
                f"training.metricForBestModel {training.metric_for_best_model}: with model.python the weights with the smallest loss are"
                " the best: leave it out"
            )
        return self

    def _require_rows_of_script(self) -> None:
        dataset, file = self.dataset, self.model.python_file
        assert file is not None
        if dataset.source != file[0]:
            raise ValueError(
                f"dataset.source {dataset.source}: the rows are those of the script in model.python: write {file[0]}"
            )
        if self.pipeline.stages > 1:
            raise ValueError(f"pipeline.stages {self.pipeline.stages}: the model of a script is one stage: set stages 1")
        for name, value, unset in (
            ("config", dataset.config, None),
            ("revision", dataset.revision, None),
            ("splits", dataset.splits, Splits()),
            ("maxSamples", dataset.max_samples, MaxSamples()),
        ):
            if value != unset:
                raise ValueError(f"dataset.{name}: the script in model.python says which rows there are: leave it out")

    @model_validator(mode="after")
    def _labelled(self) -> Self:
        task, dataset = self.model.task, self.dataset
        if self.model.python is not None or self.strategy is Strategy.COMMAND:
            return self
        if task.labelled and dataset.label is None:
            raise ValueError(f"dataset.label is missing: name the column of the label, which model.task {task} learns")
        if task is not Task.CAUSAL_LM and dataset.packing:
            raise ValueError(
                f"dataset.packing is for model.task CausalLM, whose samples may be of several texts: {task}'s are of one each"
            )
        if task is not Task.MASKED_LM and dataset.mlm_probability is not None:
            raise ValueError(f"dataset.mlmProbability is for model.task MaskedLM: with {task} no token is hidden: leave it out")
        if task is Task.MASKED_LM and len(dataset.columns) != 1:
            raise ValueError(f"dataset.text: model.task {task} takes one column of texts")
        if not task.labelled and dataset.label is not None:
            raise ValueError(f"dataset.label: model.task {task} has no labels: leave it out")
        if task is Task.QUESTION_ANSWERING and len(dataset.columns) != 2:
            raise ValueError(
                f"dataset.text: model.task {task} takes two columns, of the question and of the text that answers it"
            )
        if not task.smoothed and self.training.label_smoothing:
            raise ValueError(
                f"training.labelSmoothing: the loss of model.task {task} is no cross entropy over labels: leave it out"
            )
        metric = self.training.metric_for_best_model
        if metric is not None and task not in metric.tasks:
            fitting = ", ".join(each for each in Metric if task in each.tasks)
            raise ValueError(f"training.metricForBestModel {metric}: evaluations of model.task {task} have {fitting}")
        if not task.named and self.model.labels is not None:
            raise ValueError(f"model.labels: model.task {task} has no labels: leave it out")
        return self

    @model_validator(mode="after")
    def _can_be_streamed(self) -> Self:
        if (reason := unfit_for_streaming(self.dataset, self.model, self.training)) is not None:
            raise ValueError(reason)
        return self

    @model_validator(mode="after")
    def _has_what_is_pushed(self) -> Self:
        if self.output.hub is not None and self.output.hub.content is HubContent.ADAPTER and self.model.lora is None:
            raise ValueError("output.hub.content Adapter needs model.lora: push the Model, or train an adapter")
        return self

    @model_validator(mode="after")
    def _few_enough_ranks(self) -> Self:
        stages, replicas = self.pipeline.stages, self.data_parallel.replicas
        if stages * replicas > MOST_RANKS:
            raise ValueError(
                f"pipeline.stages {stages} times dataParallel.replicas {replicas} is {stages * replicas} ranks, and a job has at most"
                f" {MOST_RANKS}: make dataParallel.replicas at most {MOST_RANKS // stages}"
            )
        return self

    @model_validator(mode="after")
    def _one_copy_in_memory(self) -> Self:
        if self.data_parallel.replicas > 1:
            for name, wanted in (("hotStandby", self.recovery.hot_standby), ("memorySnapshot", self.recovery.memory_snapshot)):
                if wanted:
                    raise ValueError(
                        f"recovery.{name} keeps what other replicas hold anyway: leave it out, or set dataParallel.replicas 1"
                    )
        return self

    @model_validator(mode="after")
    def _has_peers(self) -> Self:
        if self.recovery.straggler is not None and self.data_parallel.shards == 1:
            raise ValueError(
                "recovery.straggler compares replicas, and with dataParallel.shards 1 there is never more than one:"
                " leave it out, or raise dataParallel.shards"
            )
        return self

    def scaled(self, replicas: int | None = None, stages: int | None = None) -> "JobSpec":
        """With so many replicas and stages; None: as many as it has. Raises ValueError (one of pydantic's) when it cannot have them."""
        if stages not in (None, 1) and self.strategy is Strategy.COMMAND:
            raise _error("pipeline", f"pipeline.stages {stages}: each rank runs the whole script: scale the replicas")
        parts = self.model_dump(by_alias=True, mode="json")
        if replicas is not None:
            parts["dataParallel"]["replicas"] = replicas
        if stages is not None:
            parts["pipeline"]["stages"] = stages
        return JobSpec.model_validate(parts)

    def cut_into(self, cut: Cut) -> "JobSpec":
        """With its layers cut so."""
        if self.pipeline.cut == cut:
            return self
        pipeline = self.pipeline.model_copy(update={"stages": cut.stages, "layers": cut.layers})
        return self.model_copy(update={"pipeline": pipeline})

    @property
    def topology(self) -> Topology:
        """Which rank computes what."""
        return Topology(self.pipeline.stages, self.data_parallel.replicas)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.size

    @property
    def most_ranks(self) -> int:
        """The world size with as many replicas as the job may be scaled to."""
        return Topology(self.pipeline.stages, self.data_parallel.most).size


def _error(part: str, reason: str) -> ValidationError:
    """As of a validator of ``part``."""
    wrong = PydanticCustomError("value_error", "{error}", {"error": reason})
    return ValidationError.from_exception_data("JobSpec", [{"type": wrong, "loc": (part,), "input": None}])


class Metadata(Message):
    """The part of an object's metadata that matters here; others (labels, managedFields, ...) may be there."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
    """Name of the job; pods are called after it."""
    namespace: str | None = None
    """Namespace of the job."""
    uid: Annotated[str, Field(pattern=UUID)] | None = None
    """Set by the API server."""
    generation: int | None = None
    """Set by the API server: counts changes of the spec."""
    creation_timestamp: AwareDatetime | None = None
    """Set by the API server."""

    @property
    def run(self) -> Run:
        """Which run of the job of this name it is."""
        begun = self.creation_timestamp.timestamp() if self.creation_timestamp is not None else 0.0
        return Run(begun=begun) if self.uid is None else Run(id=self.uid, begun=begun)


class LiveMigrationJob(Message):
    """One training job."""

    api_version: Literal["lmj.dev/v1alpha1"] = "lmj.dev/v1alpha1"
    """API group and version."""
    kind: Literal["LiveMigrationJob"] = "LiveMigrationJob"
    """Kind of the object."""
    metadata: Metadata
    """Name and namespace."""
    spec: JobSpec
    """What to do."""
    status: dict[str, Any] | None = None
    """What the operator last saw; ignored when a file is read."""

    def cut_into(self, cut: Cut | None) -> "LiveMigrationJob":
        """With its layers cut so; None: as they are."""
        return self if cut is None else self.model_copy(update={"spec": self.spec.cut_into(cut)})
