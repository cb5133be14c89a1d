"""What rank 0 writes into the output folder while training: metrics.jsonl, evaluation.json, TensorBoard."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmj_api.protocol import Evaluation, Progress
from lmj_trainer.checkpoint.write import write_atomically
from lmj_trainer.errors import UserError
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.fence import Fence

if TYPE_CHECKING:
    from lmj_api.layout import Layout

log = logging.getLogger(__name__)


class Recorder:
    """Records of steps up to the resume point stay; later ones are of work that is done again, and go. A recorder that another came after,
    of a newer view, records nothing any more.

    Storage that is full or gone does not stop training: what could not be written is kept, and written with what comes next.
    """

    def __init__(self, layout: Layout, resume: int, tensorboard: bool, warn: Callable[[str], None] = log.warning) -> None:
        """``warn`` is told once when something cannot be written, until it can again. Raises OSError when the files cannot be opened."""
        self._layout, self._warn = layout, warn
        layout.output.mkdir(parents=True, exist_ok=True)
        self._fence = Fence(layout.recorder)
        content = layout.metrics.read_bytes() if layout.metrics.exists() else b""
        kept, self.newest = _kept(content, resume)
        """``newest``: the last step that is recorded; 0: none."""
        if not content.startswith(kept):
            write_atomically(layout.metrics, kept)
        self._metrics = os.open(layout.metrics, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # A disk that is full has room for a file that gets shorter.
        os.ftruncate(self._metrics, len(kept))
        self._unwritten = b""
        self._troubled = False
        self.evaluations = [e for e in _evaluations(layout.evaluation) if e.step <= resume]
        self._stale = False
        self._board: Any = _board(layout, resume) if tensorboard else None

    def check(self) -> None:
        """Raise ViewBrokenError when another records here: this view is over, whatever this process was told."""
        if not self._fence.holds():
            raise ViewBrokenError(f"another rank 0 writes into {self._layout.output}: a newer view has begun")

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
        self._unwritten += json.dumps(line).encode() + b"\n"
        self.newest = progress.step
        self._write()
        if self._board is not None:
            for key in ("loss", "gradNorm", "learningRate"):
                self._board.add_scalar(f"train/{key}", line[key], progress.step, walltime=now)

    def evaluation(self, result: Evaluation) -> None:
        """Record an evaluation; one of the same split and step is replaced. Raises ViewBrokenError as :meth:`check`."""
        self.check()
        self.evaluations = [e for e in self.evaluations if (e.split, e.step) != (result.split, result.step)] + [result]
        self._stale = True
        self._write()
        if self._board is not None:
            for key in ("loss", "accuracy", "f1"):
                if (value := getattr(result, key)) is not None:
                    self._board.add_scalar(f"{result.split}/{key}", value, result.step)

    def _write(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._metrics, self._unwritten) :]
            if self._stale:
                entries = [e.model_dump(mode="json", by_alias=True) for e in self.evaluations]
                write_atomically(self._layout.evaluation, (json.dumps(entries, indent=1) + "\n").encode())
                self._stale = False
        except OSError as error:
            if not self._troubled:
                self._warn(
                    f"metrics cannot be written to {self._layout.output}: {error}; training goes on, and they are written later"
                )
            self._troubled = True
        else:
            self._troubled = False

    def close(self) -> None:
        """Close the files."""
        if self._fence.holds():
            self._write()
        os.close(self._metrics)
        if self._board is not None:
            self._board.close()


def _kept(content: bytes, resume: int) -> tuple[bytes, int]:
    """The lines up to step ``resume``, each step once, and the last step of them. A torn line is that of a step that is done again, and
    lines of a recorder that did not know yet that it was not the last may be among the others.
    """
    lines, newest = [], 0
    for line in content.splitlines(keepends=True):
        try:
            step = json.loads(line)["step"]
        except ValueError:
            continue
        if line.endswith(b"\n") and newest < step <= resume:
            lines.append(line)
            newest = step
    return b"".join(lines), newest


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
