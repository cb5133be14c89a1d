"""What a job came to."""

from dataclasses import dataclass
from pathlib import Path

from lmj.errors import RunError
from lmj_api.layout import Layout
from lmj_api.protocol import Evaluation
from lmj_api.status import Incident, JobStatus, Phase


@dataclass(frozen=True)
class Result:
    """A job's end, or where it is by now."""

    status: JobStatus
    """All that is known of it, as ``kubectl get lmj -o yaml`` shows it."""
    output: Path | None = None
    """Its output folder on this machine; None: it is on a cluster."""
    seconds: float | None = None
    """How long this start of it took; None: it had ended before, or is on a cluster."""

    @property
    def phase(self) -> Phase:
        """The one-word summary."""
        return self.status.phase

    @property
    def message(self) -> str:
        """Why it is in this phase, in one sentence."""
        return self.status.message

    @property
    def steps(self) -> int:
        """Committed steps."""
        return self.status.progress.step if self.status.progress is not None else 0

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The newest evaluation of each split."""
        return tuple(self.status.evaluations)

    @property
    def metrics(self) -> dict[str, float]:
        """Loss and scores of the test rows, or without any those of the validation rows: ``accuracy``, ``f1``. Empty: there are none yet."""
        tests = [evaluation for evaluation in self.evaluations if evaluation.split == "test"]
        for evaluation in tests or self.evaluations:
            scores = {name.lower().replace(" ", "_"): value for name, value in evaluation.scores.items()}
            return scores if evaluation.loss is None else {"loss": evaluation.loss, **scores}
        return {}

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """What interrupted training, and moves, oldest first."""
        return tuple(self.status.incidents)

    @property
    def restarts(self) -> int:
        """Workers and pods that were replaced."""
        return self.status.restarts

    @property
    def steps_lost(self) -> int:
        """Steps that were done again."""
        return self.status.steps_lost

    @property
    def model(self) -> Path | None:
        """The folder of the model, for ``from_pretrained``; None: it is not there, or on a cluster."""
        return self._saved(self._layout.model) if self._layout is not None else None

    @property
    def int8(self) -> Path | None:
        """The folder of the model in 8 bits (``output.int8``); None: the job makes none, or as for ``model``."""
        return self._saved(self._layout.int8) if self._layout is not None else None

    @property
    def adapter(self) -> Path | None:
        """The folder of the adapter, for ``peft``; None: the job trains none, or as for ``model``."""
        return self._saved(self._layout.adapter) if self._layout is not None else None

    def losses(self) -> dict[int, float]:
        """The loss of each step, as ``metrics.jsonl`` in the output folder has it; empty for a job on a cluster. Raises :class:`lmj.RunError`
        when the file cannot be read.
        """
        from lmj_operator.cli.errors import CommandError
        from lmj_operator.cli.report.sources import read_records

        if self._layout is None:
            return {}
        try:
            records, _ = read_records(self._layout.metrics)
        except CommandError as error:
            raise RunError(str(error)) from error
        return {record.step: record.loss for record in records}

    @property
    def _layout(self) -> Layout | None:
        return Layout(self.output, self.output / "checkpoints") if self.output is not None else None

    def _saved(self, folder: Path) -> Path | None:
        return folder if self.phase is Phase.SUCCEEDED and folder.is_dir() else None
