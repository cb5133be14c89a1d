"""All that is known of a run, as one value, and what follows from it."""

from dataclasses import dataclass

from lmj_api.protocol import CheckpointInfo, Evaluation
from lmj_api.spec.job import LiveMigrationJob
from lmj_api.status import JobStatus
from lmj_operator.cli.report.series import Record


@dataclass(frozen=True)
class Run:
    """A run, as its files tell it."""

    name: str
    """Of the job, or of the folder."""
    job: LiveMigrationJob | None
    """None: it is not known here."""
    status: JobStatus | None
    """None: it is not known here."""
    records: tuple[Record, ...]
    """By step, one each."""
    evaluations: tuple[Evaluation, ...]
    """By step."""
    checkpoints: tuple[CheckpointInfo, ...]
    """Oldest first."""
    unread: int = 0
    """Lines of metrics that could not be read."""

    @property
    def steps(self) -> int:
        """Committed steps."""
        told = self.status.progress.step if self.status is not None and self.status.progress is not None else 0
        return max(told, self.records[-1].step if self.records else 0)

    @property
    def last_evaluation(self) -> Evaluation | None:
        """The newest of the test rows; without any, of the validation rows."""
        tests = [evaluation for evaluation in self.evaluations if evaluation.split == "test"]
        found = tests or self.evaluations
        return found[-1] if found else None

    @property
    def begin(self) -> float | None:
        """When the first pod was made, or the first step was; None: not known."""
        told = self.status.started if self.status is not None else None
        return self.records[0].time if told is None and self.records else told

    @property
    def end(self) -> float | None:
        """When it ended, or the newest step was; None: not known."""
        told = self.status.finished if self.status is not None else None
        return self.records[-1].time if told is None and self.records else told

    @property
    def seconds(self) -> float | None:
        """From the first pod to the end, or to the newest step when there is no end; None: not known."""
        return None if self.begin is None or self.end is None else self.end - self.begin


def merged(recorded: list[Evaluation], status: JobStatus | None) -> tuple[Evaluation, ...]:
    """``recorded`` and those of the status, one for each split and step, by step. What is recorded has the matrix of many labels too."""
    known = {(e.split, e.step): e for e in [*(status.evaluations if status is not None else ()), *recorded]}
    return tuple(sorted(known.values(), key=lambda evaluation: evaluation.step))
