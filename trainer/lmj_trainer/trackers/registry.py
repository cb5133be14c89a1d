"""Which trackers there are. Only the one that a job names is imported."""

import importlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmj_api.spec import Tracker as TrackerSpec
from lmj_api.spec import TrackerKind
from lmj_trainer.errors import UserError
from lmj_trainer.trackers.port import Subject, Tracker


@dataclass(frozen=True)
class Entry:
    """A kind of tracker."""

    module: str
    """Of this package; it has ``open_tracker(Subject) -> Tracker``."""
    package: str
    """What it imports."""
    extra: str
    """Of this distribution, which brings that."""
    token: str
    """The variable from which the library takes its credential."""
    environment: Mapping[str, str]
    """Of the process that it runs in, unless it is set there: it waits for nobody for long, and tells nobody of itself."""


TRACKERS: dict[TrackerKind, Entry] = {
    TrackerKind.MLFLOW: Entry(
        "mlflow_tracker",
        "mlflow",
        "mlflow",
        "MLFLOW_TRACKING_TOKEN",
        {"MLFLOW_HTTP_REQUEST_TIMEOUT": "15", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_DISABLE_TELEMETRY": "true"},
    ),
    TrackerKind.WANDB: Entry(
        "wandb_tracker", "wandb", "wandb", "WANDB_API_KEY", {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    ),
    TrackerKind.TRACKIO: Entry("trackio_tracker", "trackio", "trackio", "TRACKIO_WRITE_TOKEN", {"HF_HUB_DISABLE_TELEMETRY": "1"}),
}


def token_variable(tracker: TrackerSpec) -> str:
    """Where the library of ``tracker`` looks for its credential."""
    return "HF_TOKEN" if tracker.space is not None else TRACKERS[tracker.kind].token


def require_trackers(trackers: Sequence[TrackerSpec]) -> None:
    """Raise UserError when one of ``trackers`` is not installed here."""
    for number, tracker in enumerate(trackers):
        entry = TRACKERS[tracker.kind]
        if importlib.util.find_spec(entry.package) is None:
            raise UserError(
                f"output.trackers[{number}]: {tracker.kind} needs the {entry.package} package:"
                f" pip install 'livemigrationjob[{entry.extra}]'"
            )


def open_tracker(subject: Subject) -> Tracker:
    """The tracker of ``subject``, not begun. Raises UserError when it is not installed."""
    require_trackers([subject.tracker])
    entry = TRACKERS[subject.tracker.kind]
    for name, value in entry.environment.items():
        os.environ.setdefault(name, value)
    made: Tracker = importlib.import_module(f"{__package__}.{entry.module}").open_tracker(subject)
    return made
