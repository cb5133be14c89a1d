"""What rank 0 writes into the output folder while training: metrics.jsonl, evaluation.json, TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmj_api.protocol import Evaluation, Progress
from lmj_trainer.checkpoint.write import write_atomically
from lmj_trainer.errors import UserError

if TYPE_CHECKING:
    from lmj_api.layout import Layout


class Recorder:
    """Records of steps up to the resume point stay; later ones are of work that is done again, and go."""

    def __init__(self, layout: Layout, resume: int, tensorboard: bool) -> None:
        self._layout = layout
        layout.output.mkdir(parents=True, exist_ok=True)
        kept = [line for line in _lines(layout.metrics) if line["step"] <= resume]
        write_atomically(layout.metrics, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._metrics = layout.metrics.open("a", buffering=1)
        self.newest: int = kept[-1]["step"] if kept else 0
        """The last step that is recorded."""
        self.evaluations = [e for e in _evaluations(layout.evaluation) if e.step <= resume]
        self._board: Any = _board(layout, resume) if tensorboard else None

    def step(self, progress: Progress, now: float) -> None:
        """Record a committed step."""
        line = {
            "step": progress.step,
            "epoch": progress.epoch,
            "loss": progress.loss,
            "gradNorm": progress.grad_norm,
            "learningRate": progress.learning_rate,
            "samplesPerSecond": progress.samples_per_second,
            "time": now,
        }
        self._metrics.write(json.dumps(line) + "\n")
        self.newest = progress.step
        if self._board is not None:
            for key in ("loss", "gradNorm", "learningRate"):
                self._board.add_scalar(f"train/{key}", line[key], progress.step, walltime=now)

    def evaluation(self, result: Evaluation) -> None:
        """Record an evaluation; one of the same split and step is replaced."""
        self.evaluations = [e for e in self.evaluations if (e.split, e.step) != (result.split, result.step)] + [result]
        entries = [e.model_dump(mode="json", by_alias=True) for e in self.evaluations]
        write_atomically(self._layout.evaluation, (json.dumps(entries, indent=1) + "\n").encode())
        if self._board is not None:
            for key in ("loss", "accuracy", "f1"):
                self._board.add_scalar(f"{result.split}/{key}", getattr(result, key), result.step)

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()
        if self._board is not None:
            self._board.close()


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            # The last line of a run that was cut off: its step is done again.
            break
    return lines


def _evaluations(path: Path) -> list[Evaluation]:
    return [Evaluation.model_validate(entry) for entry in json.loads(path.read_text())] if path.exists() else []


def _board(layout: Layout, resume: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "output.tensorboard needs the tensorboard package: install the extra livemigrationjob[tensorboard]"
        ) from error
    return SummaryWriter(str(layout.tensorboard), purge_step=resume + 1)
