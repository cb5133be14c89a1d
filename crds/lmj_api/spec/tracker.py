"""Experiment trackers beside a job."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from lmj_api.base import Message
from lmj_api.spec.secret import SecretKey

MOST_TRACKERS = 4
"""Of a job: each is a process beside rank 0."""


class TrackerKind(StrEnum):
    """What the tracker is."""

    MLFLOW = "MLflow"
    WANDB = "WandB"
    TRACKIO = "Trackio"


class Tracker(Message):
    """An experiment tracker that gets the run's metrics, evaluations, parameters and changes of membership, from rank 0's pod alone.

    It is fed from ``metrics.jsonl`` beside training, which never waits for it and does not fail with it. A run that recovers, moves or is
    resumed goes on in the same tracked run, and no step is logged twice.
    """

    kind: TrackerKind
    """What it is; each needs the extra of its name (``mlflow``, ``wandb``, ``trackio``)."""
    project: Annotated[str, Field(min_length=1, max_length=128)]
    """Project that the run belongs to; MLflow's experiment."""
    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Name of the tracked run. Unset: the job's name."""
    uri: Annotated[str, Field(pattern=r"^https?://[^@\s]+$", max_length=2048)] | None = None
    """Address of the tracker's server, without credentials. MLflow needs it; unset, WandB means its own service, and Trackio the output folder."""
    space: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$", max_length=200)] | None = None
    """Trackio: the Space on the hub that it logs to."""
    offline: bool = False
    """WandB: write into the output folder (``trackers/``) and ask nobody; ``wandb sync`` sends it later."""
    token: SecretKey | None = None
    """The credential on a cluster. ``lmj run`` uses the environment's: ``MLFLOW_TRACKING_TOKEN``, ``WANDB_API_KEY``, ``TRACKIO_WRITE_TOKEN`` or,
    for a Space, ``HF_TOKEN``."""

    @model_validator(mode="after")
    def _belongs(self) -> Self:
        if self.kind is TrackerKind.MLFLOW and self.uri is None:
            raise ValueError("uri is missing: MLflow needs the address of its tracking server, as in http://mlflow:5000")
        if self.space is not None and (self.kind is not TrackerKind.TRACKIO or self.uri is not None):
            raise ValueError("space is for Trackio, in the place of uri: leave one of them out")
        if self.offline and (self.kind is not TrackerKind.WANDB or self.uri is not None):
            raise ValueError("offline is for WandB without uri: leave one of them out")
        return self

    @property
    def keeps_files(self) -> bool:
        """Whether the tracked run is files in the output folder, and nobody is asked."""
        return self.offline or (self.kind is TrackerKind.TRACKIO and self.uri is None and self.space is None)
