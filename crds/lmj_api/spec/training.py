"""The hyper-parameters."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from lmj_api.base import Message
from lmj_api.spec.metric import Metric


class LearningRateSchedule(StrEnum):
    """How the learning rate goes on after warm-up: ``Linear``, ``Cosine``: down to 0 in a line or half a cosine. ``Constant``: it stays.
    ``CosineWithRestarts``: down to 0 in several halves of a cosine. ``Polynomial``: down by a power. ``InverseSqrt``: down with the root of
    the steps.
    """

    LINEAR = "Linear"
    COSINE = "Cosine"
    CONSTANT = "Constant"
    COSINE_WITH_RESTARTS = "CosineWithRestarts"
    POLYNOMIAL = "Polynomial"
    INVERSE_SQRT = "InverseSqrt"

    @property
    def endless(self) -> bool:
        """Whether no step's rate depends on how many follow."""
        return self in (LearningRateSchedule.CONSTANT, LearningRateSchedule.INVERSE_SQRT)


class ScheduleOptions(Message):
    """What some schedules have beside warm-up."""

    cycles: Annotated[int, Field(ge=1)] | None = None
    """Halves of a cosine, for ``CosineWithRestarts``. Unset: 1."""
    power: Annotated[float, Field(gt=0)] | None = None
    """For ``Polynomial``. Unset: 1, which is a line."""
    end_learning_rate: Annotated[float, Field(ge=0)] | None = None
    """The learning rate at the end, for ``Polynomial``; less than the peak. Unset: 1e-7."""


class Optimizer(StrEnum):
    """What makes an update of a gradient."""

    ADAMW = "AdamW"
    SGD = "SGD"


class Precision(StrEnum):
    """Arithmetic of forward and backward: others than ``Float32`` are autocast; weights and optimizer stay float32. ``Float16`` scales the
    loss, for GPUs without bfloat16 (T4, V100): a step whose gradients overflow is left out.
    """

    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"


class Device(StrEnum):
    """Where stages compute. ``Auto``: a GPU if the rank sees one, else the CPU."""

    AUTO = "Auto"
    CPU = "CPU"
    CUDA = "CUDA"


class EarlyStopping(Message):
    """When training ends because it makes the model no better."""

    patience: Annotated[int, Field(ge=1, le=10_000)] = 3
    """Evaluations in a row that are no better than the best one before them: after the last of them training ends."""
    threshold: Annotated[float, Field(ge=0)] = 0.0
    """By how much the metric has to be better to count as better."""


class Continued(Message):
    """An earlier part of a run, trained with other values."""

    step: Annotated[int, Field(ge=1)]
    """Its last step: the next part goes on from the checkpoint of that."""
    state_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """What its checkpoints say in their manifests."""


class Training(Message):
    """One run: how long, on which batches, with which optimizer."""

    epochs: Annotated[int, Field(ge=1)] = 3
    """Passes over the training rows. Rows that do not fill a last batch are left out of that epoch (others in each)."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Stop after this many steps, whatever ``epochs`` says."""
    batch_size: Annotated[int, Field(ge=1)] = 32
    """Samples in a batch, over all micro-batches."""
    gradient_accumulation_steps: Annotated[int, Field(ge=1)] = 1
    """Batches in one optimizer step; a step's global batch is ``batchSize`` times this."""
    group_by_length: bool = False
    """Make batches of rows of similar length, so that less is padded. Batches come in a random order, and each row once an epoch."""
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    """Peak learning rate."""
    schedule: LearningRateSchedule = LearningRateSchedule.LINEAR
    """Learning rate after warm-up."""
    schedule_options: ScheduleOptions = ScheduleOptions()
    """What some schedules have beside warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises from 0 to its peak."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Warm-up as a part of all steps; set this or ``warmupSteps``."""
    optimizer: Optimizer = Optimizer.ADAMW
    """What makes an update of a gradient."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of ``SGD``."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Weight decay, of AdamW decoupled, of ``SGD`` a part of the gradient; biases and layer norms are not decayed."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW's first-moment decay."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW's second-moment decay."""
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW's epsilon."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Clip the gradient's norm over all stages to this. Null: no clipping."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """How much of each label is spread over all of them in the loss that is trained. Losses of evaluations are without it."""
    eval_steps: Annotated[int, Field(ge=1)] | None = None
    """Evaluate the validation rows after every so many steps, and after the last one. Unset: after each epoch."""
    metric_for_best_model: Metric | None = None
    """What the best weights are chosen by, and early stopping looks at. Unset: the accuracy; of language models,
    numbers and ``model.python`` the loss."""
    early_stopping: EarlyStopping | None = None
    """End training before its last step when evaluations get no better. Null: train all steps."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Random weights, sample order and dropout all derive from it."""
    precision: Precision = Precision.FLOAT32
    """Arithmetic of forward and backward."""
    gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass instead of keeping its activations: less memory, a third more compute."""
    threads: Annotated[int, Field(ge=1, le=256)] | None = None
    """CPU threads that a rank computes with. Equal numbers give equal bits. Unset: on one machine its processors divided by the stages, counted when
    the run first starts and kept as long as it goes on; on a cluster 1, which does not depend on the nodes or the template."""
    device: Device = Device.AUTO
    """Where stages compute."""

    continues: Annotated[list[Continued], Field(max_length=64)] = []
    """The parts of the run before this one, oldest first, which stay as they were trained: from the last one's step on, all values here
    count. ``lmj run --continue`` writes it."""

    @property
    def computing_threads(self) -> int:
        """``threads``, or 1 where nobody has settled it."""
        return self.threads or 1

    @model_validator(mode="after")
    def _one_warmup(self) -> Self:
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError("set warmupSteps or warmupRatio, not both")
        return self

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        polynomial, restarts = LearningRateSchedule.POLYNOMIAL, LearningRateSchedule.COSINE_WITH_RESTARTS
        options = self.schedule_options
        for name, value, schedule in (
            ("cycles", options.cycles, restarts),
            ("power", options.power, polynomial),
            ("endLearningRate", options.end_learning_rate, polynomial),
        ):
            if value is not None and self.schedule is not schedule:
                raise ValueError(f"scheduleOptions.{name} is for schedule {schedule}: leave it out")
        if self.schedule is polynomial and self.end_learning_rate >= self.learning_rate:
            raise ValueError(
                f"scheduleOptions.endLearningRate {self.end_learning_rate:g} is not less than learningRate {self.learning_rate:g}"
            )
        if self.momentum and self.optimizer is not Optimizer.SGD:
            raise ValueError(f"momentum is for optimizer SGD: {self.optimizer} has adamBeta1")
        return self

    @property
    def cycles(self) -> int:
        """``scheduleOptions.cycles``, or what it is where it is unset."""
        return self.schedule_options.cycles or 1

    @property
    def power(self) -> float:
        """``scheduleOptions.power``, or what it is where it is unset."""
        return self.schedule_options.power or 1.0

    @property
    def end_learning_rate(self) -> float:
        """``scheduleOptions.endLearningRate``, or what it is where it is unset."""
        end = self.schedule_options.end_learning_rate
        return 1e-7 if end is None else end

    def follows(self, step: int, state_digest: str) -> bool:
        """Whether the state after ``step``, as a run with ``state_digest`` has it, is one that this run had."""
        return any(part.state_digest == state_digest and step <= part.step for part in self.continues)

    @property
    def begins(self) -> int:
        """The step from which on these values count."""
        return max((part.step for part in self.continues), default=0)
