"""Where things lie in a job's output folder: the one place that knows."""

from dataclasses import dataclass
from pathlib import Path

from lmj_api.spec.job import JobSpec


@dataclass(frozen=True)
class Layout:
    """The paths of one job, derived from its spec (whose paths are absolute by the time that this is used)."""

    output: Path
    checkpoints: Path

    @classmethod
    def of(cls, spec: JobSpec) -> "Layout":
        """The layout of a job with ``spec``."""
        output = Path(spec.output.path)
        return cls(output, Path(spec.checkpoint.path) if spec.checkpoint.path else output / "checkpoints")

    @property
    def model(self) -> Path:
        """The final model, a ``save_pretrained`` folder."""
        return self.output / "model"

    @property
    def adapter(self) -> Path:
        """The adapter alone, in ``peft``'s format, where the job trains one."""
        return self.output / "adapter"

    @property
    def metrics(self) -> Path:
        """One JSON line a step."""
        return self.output / "metrics.jsonl"

    @property
    def recorder(self) -> Path:
        """Tells who writes the metrics, and the files beside them."""
        return self.output / ".recorder"

    @property
    def evaluation(self) -> Path:
        """The evaluations, JSON."""
        return self.output / "evaluation.json"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.output / "tensorboard"

    @property
    def cache(self) -> Path:
        """Tokenized datasets and trained tokenizers, a folder for each digest."""
        return self.output / "cache"

    @property
    def logs(self) -> Path:
        """A log for each pod (local runs)."""
        return self.output / "logs"

    @property
    def run(self) -> Path:
        """Bookkeeping of a local run: ``job.json``, ``status.json``, ``lock``, ``pods/NAME/``."""
        return self.output / ".lmj"
