"""TensorBoard's event files of what rank 0 records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmj_api.bounds import LARGEST
from lmj_trainer.errors import UserError
from lmj_trainer.worker.metrics_file import kept_lines

if TYPE_CHECKING:
    from lmj_api.protocol import Evaluation

_STEP = ("loss", "gradNorm", "learningRate")
_EVALUATION = ("loss", "accuracy", "f1", "perplexity", "mean_absolute_error", "correlation")


class Board:
    """An event file in ``folder``, open for writing. Steps after ``newest`` that earlier files there show are shown no more. Methods may raise
    OSError.
    """

    def __init__(self, folder: Path, newest: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=newest + 1)

    def step(self, entry: dict[str, Any]) -> None:
        """Show a line of metrics.jsonl."""
        for key in _STEP:
            # Of a step whose gradients overflowed there is no norm.
            if (value := entry.get(key)) is not None:
                self._writer.add_scalar(f"train/{key}", value, entry["step"], walltime=entry.get("time"))

    def evaluation(self, result: Evaluation, time: float | None = None) -> None:
        """Show an evaluation, made at ``time`` in seconds since the epoch; None: now."""
        for key in _EVALUATION:
            if (value := getattr(result, key)) is not None:
                self._writer.add_scalar(f"{result.split}/{key}", value, result.step, walltime=time)

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()


def remake(folder: Path, metrics: Path, evaluations: Sequence[Evaluation]) -> None:
    """Have ``folder`` show all lines of ``metrics`` and the ``evaluations`` in one event file, and nothing else. Raises OSError."""
    if folder.exists():
        shutil.rmtree(folder)
    board = Board(folder, 0)
    evaluated = {result.step for result in evaluations}
    times: dict[int, float] = {}
    try:
        for entry in _entries(metrics):
            board.step(entry)
            if entry["step"] in evaluated and "time" in entry:
                times[entry["step"]] = entry["time"]
        for result in evaluations:
            board.evaluation(result, times.get(result.step))
    finally:
        board.close()


def check_tensorboard() -> None:
    """Raise UserError when TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401 - whether it is there
    except ImportError as error:
        raise UserError(
            "output.tensorboard needs the tensorboard package: install the extra livemigrationjob[tensorboard]"
        ) from error


def _entries(metrics: Path) -> Iterator[dict[str, Any]]:
    if not metrics.exists():
        return
    with metrics.open("rb") as file:
        for _, _, line in kept_lines(file, LARGEST):
            yield json.loads(line)
