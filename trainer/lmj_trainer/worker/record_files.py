"""The files that one view's rank 0 records in. They may be unreachable at any moment: every call may raise OSError, and be made again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from lmj_api.protocol import Evaluation, Progress
from lmj_trainer.durable import sync_folder, write_atomically
from lmj_trainer.worker.fence import Claim, Fence
from lmj_trainer.worker.metrics_file import MetricsFile

if TYPE_CHECKING:
    from lmj_api.layout import Layout
    from lmj_trainer.state.journal import Journal, Line

log = logging.getLogger(__name__)

_SYNC_SECONDS = 1.0
"""Between two beginnings to make the lines durable: until they are, the other ranks keep them."""
_BATCH = 512
"""Lines that are written at once."""


class RecordFiles:
    """For the recorder's thread, but for :attr:`newest` and :attr:`evaluations`."""

    def __init__(
        self, layout: Layout, claim: Claim, resume: int, journal: Journal, tensorboard: bool, warn: Callable[[str], None]
    ) -> None:
        self._layout, self._resume, self._journal, self._warn = layout, resume, journal, warn
        self._turn = journal.begin(resume)
        self._fence = Fence(layout.recorders, claim)
        self._metrics: MetricsFile | None = None
        self._syncing: threading.Thread | None = None
        self._synced, self._unsure = float("-inf"), False
        self._tensorboard = tensorboard
        self._board: Any = None
        self.newest: int | None = None
        """The last step that is on storage; 0: none; None: not known yet."""
        self.evaluations: list[Evaluation] = []
        """Those that are on storage."""

    def hold(self) -> None:
        """As :meth:`Fence.hold`."""
        self._fence.hold()

    def write(self) -> None:
        """Write what waits, after :meth:`hold`. Raises as that, and OSError."""
        if self._metrics is None:
            self._open()
        while lines := self._journal.first(_BATCH, self._turn):
            self._append(lines)
        self._make_durable()
        if waiting := self._journal.evaluations():
            entries = merged(self.evaluations, waiting)
            text = json.dumps([e.model_dump(mode="json", by_alias=True) for e in entries], indent=1)
            write_atomically(self._layout.evaluation, text.encode() + b"\n")
            self.evaluations = entries
            self._show(waiting)
            self._journal.filed(waiting, self._turn)

    def close(self) -> None:
        """Close them; the next :meth:`write` opens them again, which a file server that was away asks for."""
        metrics, self._metrics = self._metrics, None
        board, self._board = self._board, None
        with contextlib.suppress(OSError):  # of what was written before, which is known by now or read again
            if metrics is not None:
                metrics.close()
            if board is not None:
                board.close()

    def _make_durable(self) -> None:
        """In a thread of its own: a disk that is busy with a checkpoint takes seconds, and training waits for this one."""
        assert self._metrics is not None and self.newest is not None  # noqa: PT018 - opened
        if time.monotonic() < self._synced + _SYNC_SECONDS or (self._syncing is not None and self._syncing.is_alive()):
            return
        if self._journal.recorded >= self.newest or self._unsure:
            return
        self._synced = time.monotonic()
        arguments = (self._metrics.duplicate(), self.newest)
        self._syncing = threading.Thread(target=self._sync, args=arguments, name="metrics-sync", daemon=True)
        self._syncing.start()

    def _sync(self, file: int, step: int) -> None:
        try:
            os.fdatasync(file)
            sync_folder(self._layout.output)
        except OSError as error:
            # A second try reports no error of what was lost in the first.
            self._unsure = True
            self._warn(f"{self._layout.metrics} may lack lines after a power cut: {error}; the other ranks keep them")
        else:
            self._journal.durable(step, self._turn)
        finally:
            os.close(file)

    def _open(self) -> None:
        last = self._resume if self.newest is None else self.newest
        for path in (self._layout.metrics, self._layout.evaluation):
            _clear(path)
        first = self.newest is None
        if first:
            found = read_evaluations(self._layout.evaluation, lambda text: self._warn(f"{text}, and it is written again"))
            self.evaluations = [e for e in found if e.step <= self._resume]
        self._metrics = MetricsFile(self._layout.metrics, last, self._fence.hold)
        self.newest = self._metrics.newest
        self._journal.written(self.newest, self._turn)
        if self._tensorboard:
            self._board = _board(self._layout, self.newest)

    def _append(self, lines: list[Line]) -> None:
        assert self._metrics is not None and self.newest is not None  # noqa: PT018 - opened
        told = [(Progress.model_validate_json(line.text), line.time) for line in lines]
        self._metrics.append(b"".join(json.dumps(_line(progress, at)).encode() + b"\n" for progress, at in told))
        before = self.newest
        for progress, at in told:
            if progress.step > before + 1:
                self._warn(
                    f"metrics of the steps {before + 1} to {progress.step - 1} are lost: they could not be written in time"
                )
            before = progress.step
            if self._board is not None:
                for key in ("loss", "gradNorm", "learningRate"):
                    self._board.add_scalar(f"train/{key}", _line(progress, at)[key], progress.step, walltime=at)
        self.newest = before
        self._journal.written(before, self._turn)

    def _show(self, results: list[Evaluation]) -> None:
        if self._board is None:
            return
        for result in results:
            for key in ("loss", "accuracy", "f1", "perplexity"):
                if (value := getattr(result, key)) is not None:
                    self._board.add_scalar(f"{result.split}/{key}", value, result.step)


def read_evaluations(path: Path, warn: Callable[[str], None]) -> list[Evaluation]:
    """The evaluations in the file at ``path``; what is none is left out, and ``warn`` gets a line. Raises OSError."""
    try:
        entries = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError) as error:
        warn(f"{path} is no list of evaluations: {error}")
        return []
    good, wrong = [], 0
    for entry in entries if isinstance(entries, list) else [entries]:
        try:
            good.append(Evaluation.model_validate(entry))
        except ValidationError:
            wrong += 1
    if wrong:
        warn(f"{path}: {wrong} entries are no evaluations")
    return good


def merged(old: list[Evaluation], new: list[Evaluation]) -> list[Evaluation]:
    """``old``, then ``new``, which takes the place of those of the same split and step."""
    newer = {(e.split, e.step) for e in new}
    return [e for e in old if (e.split, e.step) not in newer] + new


def _line(progress: Progress, at: float) -> dict[str, Any]:
    return {
        "step": progress.step,
        "epoch": progress.epoch,
        "loss": progress.loss,
        "gradNorm": progress.grad_norm,
        "learningRate": progress.learning_rate,
        "samplesPerSecond": progress.samples_per_second,
        **({"replicas": progress.replicas} if progress.replicas is not None else {}),
        "time": at,
    }


def _clear(path: Path) -> None:
    """Remove what writers that died left beside ``path``."""
    for left in path.parent.glob(f".{path.name}.*.partial"):
        left.unlink(missing_ok=True)


def _board(layout: Layout, newest: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(layout.tensorboard), purge_step=newest + 1)
