"""MLflow, through its client."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from lmj_trainer.trackers.port import Begun, Note, Row, Subject

_METRICS, _PARAMETERS = 1000, 100
"""That its server takes at once."""
_LONGEST_PARAMETER, _LONGEST_TAG = 500, 5000
_RUN = "lmj.run"

T = TypeVar("T")


class MLflow:
    """A tracked run is known by a tag with the run's id, so nobody has to remember its own.

    The server keeps a metric of one step, time and value once, so rows that are logged again are the same rows.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._client = MlflowClient(tracking_uri=subject.tracker.uri)
        self._id = ""

    def begin(self) -> Begun:
        """As the port says."""
        subject, client = self._subject, self._client
        experiment = self._experiment(subject.tracker.project)
        found = client.search_runs([experiment], f"tags.`{_RUN}` = '{subject.run.id}'", max_results=1)
        if found:
            run = found[0]
            client.update_run(run.info.run_id, status="RUNNING")
        else:
            tags = {_RUN: subject.run.id, "lmj.job": subject.job}
            run = client.create_run(experiment, tags=tags, run_name=subject.name)
        self._id = run.info.run_id
        # What is there cannot be changed, which the server refuses.
        wanted = [Param(k, v[:_LONGEST_PARAMETER]) for k, v in subject.parameters.items() if k not in run.data.params]
        for some in _parts(wanted, _PARAMETERS):
            client.log_batch(self._id, params=some)
        return Begun(f"{subject.tracker.uri}/#/experiments/{experiment}/runs/{self._id}")

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            # Another run's tracker was first.
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def log(self, rows: Sequence[Row]) -> None:
        """As the port says."""
        begun = self._subject.run.begun
        metrics = [
            Metric(name, value, int(1000 * (begun if row.time is None else row.time)), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        for some in _parts(metrics, _METRICS):
            self._client.log_batch(self._id, metrics=some)

    def note(self, note: Note) -> None:
        """As the port says."""
        self._client.set_tag(self._id, f"lmj.view.{note.view}", f"step {note.step}: {note.text}"[:_LONGEST_TAG])

    def end(self) -> None:
        """As the port says."""
        self._client.set_terminated(self._id, "FINISHED")

    def leave(self) -> None:
        """As the port says: whoever goes on with it finds it as it is."""


def _parts(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[first : first + most] for first in range(0, len(items), most))


def open_tracker(subject: Subject) -> Any:
    """A tracker of ``subject``."""
    return MLflow(subject)
