"""Where things lie in a job's output folder: the one place that knows."""

from dataclasses import dataclass
from pathlib import Path

from lmj_api.buckets import in_bucket
from lmj_api.spec.job import JobSpec


@dataclass(frozen=True)
class Layout:
    """The paths of one job, derived from its spec (whose paths are absolute by the time that this is used)."""

    output: Path
    checkpoints: Path
    """Their folder, which is not used where they lie in a ``bucket``."""
    script_checkpoints: Path | None = None
    """Where a script saves its own, in a format of its own; None: it is not known, or there is no script."""
    bucket: str | None = None
    """The URI of the checkpoints in object storage; None: they lie in ``checkpoints``."""
    results: str | None = None
    """The URI of the results in object storage, of which ``output`` is one machine's part then; None: they lie in ``output``."""

    @classmethod
    def of(cls, spec: JobSpec) -> "Layout":
        """The layout of a job with ``spec``."""
        results = spec.output.path if in_bucket(spec.output.path) else None
        output = Path(spec.output.path if results is None else spec.output.scratch or results.rpartition("/")[2])
        saved = spec.command.checkpoints if spec.command is not None else None
        place = spec.checkpoint.path or (f"{results}/checkpoints" if results is not None else None)
        bucket = place if place is not None and in_bucket(place) else None
        checkpoints = Path(place) if place is not None and bucket is None else output / "checkpoints"
        return cls(output, checkpoints, Path(saved) if saved is not None else None, bucket, results)

    @property
    def place(self) -> str:
        """Where checkpoints lie, for people: a path or a URI."""
        return self.bucket if self.bucket is not None else str(self.checkpoints)

    @property
    def model(self) -> Path:
        """The final model, a ``save_pretrained`` folder."""
        return self.output / "model"

    @property
    def int8(self) -> Path:
        """The final model with its linear layers in 8 bits, where the job asks for it."""
        return self.output / "model-int8"

    @property
    def adapter(self) -> Path:
        """The adapter alone, in ``peft``'s format, where the job trains one."""
        return self.output / "adapter"

    @property
    def metrics(self) -> Path:
        """One JSON line a step."""
        return self.output / "metrics.jsonl"

    @property
    def recorders(self) -> Path:
        """Tells who writes the metrics, and the files beside them."""
        return self.output / ".recorders"

    @property
    def mirrored(self) -> Path:
        """Where results lie in object storage: which of their writers wrote the metrics and evaluations of this machine."""
        return self.output / ".mirrored"

    @property
    def evaluation(self) -> Path:
        """The evaluations, JSON."""
        return self.output / "evaluation.json"

    @property
    def trained(self) -> Path:
        """The job whose results are in the folder, JSON: written when its training begins."""
        return self.output / ".job.json"

    @property
    def pretrained(self) -> Path:
        """The hub's model that the run began with, a folder for each name."""
        return self.output / "pretrained"

    @property
    def fetched(self) -> Path:
        """What the job has of object storage: rows and the model, a folder for each place."""
        return self.output / "fetched"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.output / "tensorboard"

    @property
    def trackers(self) -> Path:
        """How far each experiment tracker is, and what those keep that ask no server."""
        return self.output / "trackers"

    @property
    def views(self) -> Path:
        """The views and why each was formed, a JSON line each, for a job whose run is shown elsewhere."""
        return self.output / ".views.jsonl"

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

    def has_results(self) -> bool:
        """Whether anything was trained into the folder. Raises OSError when that cannot be told."""
        if self.model.exists() or self.evaluation.exists():
            return True
        if self.metrics.exists() and self.metrics.stat().st_size > 0:
            return True
        return (
            any((entry / "manifest.json").exists() for entry in self.checkpoints.iterdir())
            if self.checkpoints.is_dir()
            else False
        )
