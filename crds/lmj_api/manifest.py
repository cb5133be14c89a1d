"""The manifest of a checkpoint: written last and atomically, so a folder without one is no checkpoint."""

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from lmj_api.base import Message
from lmj_api.run import Run

LARGEST_EXPONENT = 31
"""Of a loss scale."""
DOUBLING_STEPS = 2000
"""Steps without an overflow after which a loss scale doubles."""
MOST_SKIPPED = (1 << 16) - 1
"""Steps of a training that may be left out because their gradients overflowed."""


class ManifestFile(Message):
    """One rank's file of a checkpoint."""

    name: Annotated[str, Field(pattern=r"^rank-[0-9]+\.safetensors$")]
    """File name inside the checkpoint's folder."""
    size: Annotated[int, Field(ge=0)]
    """Size in bytes."""
    xxh128: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """XXH3-128 digest of the whole file, hex."""


class LossScale(Message):
    """That of Float16 training after the checkpoint's step."""

    exponent: Annotated[int, Field(ge=0, le=LARGEST_EXPONENT)]
    """Of two: losses are multiplied by the power before the backward pass."""
    good: Annotated[int, Field(ge=0, lt=DOUBLING_STEPS)]
    """Steps since it changed."""
    skipped: Annotated[int, Field(ge=0, le=MOST_SKIPPED)]
    """Steps in all whose gradients overflowed, so that their update was left out."""


class Manifest(Message):
    """What a checkpoint holds: the state after ``step`` committed steps."""

    format: Literal["lmj.checkpoint/1"] = "lmj.checkpoint/1"
    """Version of this format."""
    job: str
    """Name of the job that wrote it."""
    run: Run | None = None
    """The run that wrote it; None: nobody gave it an identity, or it is of before runs had one."""
    view: Annotated[int, Field(ge=1)]
    """Number of the view that wrote it."""
    step: Annotated[int, Field(ge=0)]
    """Committed steps; also the position in the data and in the learning rate schedule, which are functions of it."""
    epoch: Annotated[float, Field(ge=0)]
    """Epochs done, with the fraction."""
    state_digest: str
    """Digest of the parts of the spec that the state depends on (model, data, hyper-parameters, not the number of stages)."""
    seconds: Annotated[float, Field(ge=0)]
    """Training time so far, in seconds."""
    best: bool = False
    """The best validation so far was that of this step."""
    accuracy: float | None = None
    """Validation accuracy at this step, when it was evaluated."""
    best_step: int | None = None
    """Step of the best validation so far."""
    best_score: Annotated[float | None, Field(validation_alias=AliasChoices("bestScore", "best_score", "bestAccuracy"))] = None
    """What that is the best by: see :attr:`~lmj_api.protocol.Evaluation.score`. Checkpoints of before tasks had scores call it ``bestAccuracy``."""
    waited: Annotated[int, Field(ge=0)] = 0
    """Evaluations in a row up to this step of which none was better: see ``training.earlyStopping``."""
    loss_scale: LossScale | None = None
    """Of Float16 training."""
    files: list[ManifestFile]
    """One file a rank; a tensor lives in one of them, named as in the model, with its moments as ``exp_avg/NAME`` and ``exp_avg_sq/NAME``."""
