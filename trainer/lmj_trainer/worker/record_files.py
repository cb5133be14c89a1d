"""The files that one view's rank 0 records in. They may be unreachable at any moment: every call may raise OSError, and be made again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from lmj_api.protocol import Evaluation, Progress
from lmj_trainer.durable import sync_folder, write_atomically
from lmj_trainer.errors import UserError
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.board import Board, remake
from lmj_trainer.worker.claims import FolderClaims
from lmj_trainer.worker.collected import as_json, merged
from lmj_trainer.worker.fence import Claim, Fence
from lmj_trainer.worker.metrics_file import MetricsFile
from lmj_trainer.worker.mirror import Mirror

if TYPE_CHECKING:
    from lmj_api.layout import Layout
    from lmj_trainer.state.journal import Journal, Line
    from lmj_trainer.worker.results import Results

log = logging.getLogger(__name__)

_SYNC_SECONDS = 1.0
"""Between two beginnings to make the lines durable: until they are, the other ranks keep them."""
_PUSH_SECONDS = 30.0
"""The same where they go to object storage, which is asked for each time."""
_BATCH = 512
"""Lines that are written at once."""


class RecordFiles:
    """For the recorder's thread, but for :attr:`newest` and :attr:`evaluations`."""

    def __init__(
        self,
        layout: Layout,
        claim: Claim,
        resume: int,
        journal: Journal,
        tensorboard: bool,
        warn: Callable[[str], None],
        results: Results | None = None,
    ) -> None:
        """``results``: where they are to be besides, so that they outlive this machine; None: the folder does."""
        self._layout, self._resume, self._journal, self._warn = layout, resume, journal, warn
        self._turn = journal.begin(resume)
        self._fence = Fence(FolderClaims(layout.recorders), claim)
        self._mirror = Mirror(results, claim, journal, self._turn) if results is not None else None
        self._metrics: MetricsFile | None = None
        self._syncing: threading.Thread | None = None
        self._synced, self._unsure = float("-inf"), False
        self._unreached = False
        self._told: list[Evaluation] = []
        """Evaluations that are in the file, and wait to be elsewhere too."""
        self._tensorboard = tensorboard
        self._board: Board | None = None
        self.newest: int | None = None
        """The last step that is on storage; 0: none; None: not known yet."""
        self.evaluations: list[Evaluation] = []
        """Those that are on storage."""

    def hold(self) -> None:
        """As :meth:`Fence.hold`."""
        if self._mirror is not None:
            self._mirror.check()
        self._fence.hold()

    def push(self) -> None:
        """Have all that was written outlive this machine. Any thread may. Raises as :meth:`hold`, and OSError."""
        if self._mirror is not None:
            self._mirror.push()

    def publish(self) -> None:
        """As :meth:`push`, of all results, when training is over."""
        if self._mirror is None:
            return
        self._mirror.check()
        if self._tensorboard:
            # Event files of each pod would be lost with it: one is made of all that is recorded.
            remake(self._layout.tensorboard, self._layout.metrics, self.evaluations)
        self._mirror.publish()

    def write(self) -> None:
        """Write what waits, after :meth:`hold`. Raises as that, and OSError."""
        if self._metrics is None:
            self._open()
        while lines := self._journal.first(_BATCH, self._turn, self.newest or 0):
            self._append(lines)
        self._make_durable()
        if (waiting := self._journal.evaluations()) and waiting != self._told:
            entries = merged(self.evaluations, waiting)
            write_atomically(self._layout.evaluation, as_json(entries))
            self.evaluations = entries
            self._show(waiting)
            if self._mirror is None:
                self._journal.filed(waiting, self._turn)
            else:
                self._told = waiting
                self._mirror.evaluated(entries, waiting)

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
        between = _SYNC_SECONDS if self._mirror is None else _PUSH_SECONDS
        if time.monotonic() < self._synced + between or (self._syncing is not None and self._syncing.is_alive()):
            return
        if self._journal.recorded >= self.newest or self._unsure:
            return
        self._synced = time.monotonic()
        mirror, metrics = self._mirror, self._metrics
        work = partial(self._push, mirror) if mirror is not None else partial(self._sync, metrics.duplicate(), self.newest)
        self._syncing = threading.Thread(target=work, name="metrics-sync", daemon=True)
        self._syncing.start()

    def _push(self, mirror: Mirror) -> None:
        try:
            mirror.push()
        except OSError as error:
            if not self._unreached:
                self._warn(f"metrics cannot be written: {error}; training goes on, and they are written later")
            self._unreached = True
        except (ViewBrokenError, UserError) as error:
            log.info("records no more: %s", error)  # whoever looks next hears of it
        else:
            self._unreached = False

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
        if self._mirror is not None and first:
            self._mirror.pull(self._resume)
        if first:
            found = read_evaluations(self._layout.evaluation, lambda text: self._warn(f"{text}, and it is written again"))
            self.evaluations = [e for e in found if e.step <= self._resume]
        self._metrics = MetricsFile(self._layout.metrics, last, self._fence.hold)
        if self._mirror is not None:
            self._mirror.rewind()
        self.newest = self._metrics.newest
        self._journal.written(self.newest if self._mirror is None else self._mirror.sent, self._turn)
        if self._tensorboard and self._mirror is None:
            self._board = Board(self._layout.tensorboard, self.newest)

    def _append(self, lines: list[Line]) -> None:
        assert self._metrics is not None and self.newest is not None  # noqa: PT018 - opened
        told = [(Progress.model_validate_json(line.text), line.time) for line in lines]
        entries = [_line(progress, at) for progress, at in told]
        self._metrics.append(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
        before = self.newest
        for (progress, _), entry in zip(told, entries, strict=True):
            if progress.step > before + 1:
                self._warn(
                    f"metrics of the steps {before + 1} to {progress.step - 1} are lost: they could not be written in time"
                )
            before = progress.step
            if self._board is not None:
                self._board.step(entry)
        self.newest = before
        if self._mirror is None:
            self._journal.written(before, self._turn)

    def _show(self, results: list[Evaluation]) -> None:
        if self._board is None:
            return
        for result in results:
            self._board.evaluation(result)


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
