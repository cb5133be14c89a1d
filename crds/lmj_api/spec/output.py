"""Where the results go."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lmj_api.base import Message
from lmj_api.spec.hub import Hub
from lmj_api.spec.tracker import MOST_TRACKERS, Tracker


class Weights(StrEnum):
    """Which weights become the final model: those of the last step, or of the best validation
    (``training.metricForBestModel``).
    """

    LAST = "Last"
    BEST = "Best"


class Output(Message):
    """The output folder: ``model/`` (``save_pretrained``), ``evaluation.json``, ``metrics.jsonl``, ``checkpoints/``, ``logs/``."""

    path: Annotated[str, Field(min_length=1)]
    """The folder, made when it is not there. A relative path is relative to the job's file; on a cluster it lies on the volume ``storage.output``.
    Or a folder in object storage (``s3://BUCKET/FOLDER``, see ``checkpoint.path``): then pods share no volume."""
    scratch: Annotated[str, Field(min_length=1)] | None = None
    """Where ``path`` is in object storage: the folder of each machine for what is written before it is there. A relative path as of ``path``.
    Unset: called as the last part of ``path``."""
    weights: Weights = Weights.LAST
    """Which weights become the final model."""
    int8: bool = False
    """Also write the final model with its linear layers in 8 bits into ``model-int8/``, for inference on CPUs (weights a scale for each row,
    activations a scale for each token, in the format of compressed-tensors)."""
    tensorboard: bool = False
    """Also write TensorBoard event files into ``tensorboard/`` (needs the ``tensorboard`` extra); with results in object storage, at the end."""
    trackers: Annotated[list[Tracker], Field(max_length=MOST_TRACKERS)] = []
    """Experiment trackers that the run is shown in: MLflow, Weights & Biases, Trackio."""
    hub: Hub | None = None
    """Push the trained model to the hub. Unset: it stays in the output folder."""

    @property
    def delivers(self) -> bool:
        """Whether the agent of rank 0 has something to do when all is trained and saved."""
        return bool(self.trackers) or self.hub is not None
