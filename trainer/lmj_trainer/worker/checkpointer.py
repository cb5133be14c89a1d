"""Checkpoints beside training: copied and written by a thread while the next step computes."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.names import checkpoint_name, rank_file
from lmj_api.protocol import CheckpointInfo, EventKind
from lmj_trainer.checkpoint.prune import remove, surplus
from lmj_trainer.checkpoint.tensors import write_tensors
from lmj_trainer.checkpoint.write import commit_manifest, make_folder
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.inbox import ViewBrokenError

if TYPE_CHECKING:
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.transport.port import Transport
    from lmj_trainer.worker.control import Control

log = logging.getLogger(__name__)

_COPY_TIMEOUT = 300  # seconds for one pass over memory: far more than any machine that trains needs


@dataclass(frozen=True)
class Facts:
    """What the manifest says beside the files; rank 0's word counts."""

    job: str
    state_digest: str
    epoch: float
    seconds: float
    best: bool
    accuracy: float | None
    best_step: int | None
    best_accuracy: float | None


class Checkpointer:
    """Takes one checkpoint at a time. Parameters do not change before the next commit, so the copy overlaps the next step's compute."""

    def __init__(self, root: Path, keep: int, state: StageState, transport: Transport, control: Control) -> None:
        self._root, self._keep, self._state = root, keep, state
        self._transport, self._control = transport, control
        self._copy: torch.Tensor | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._thread: threading.Thread | None = None
        self.known: list[CheckpointInfo] = []
        """Checkpoints that this worker knows to be good, for pruning (rank 0)."""

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, rank: int, stages: int, patience: float, facts: Facts | None) -> None:
        """Begin the checkpoint of the state's step. ``facts`` on rank 0 only, which writes the manifest when all parts are there."""
        self.wait(patience)
        view, step = self._transport.inbox.view, self._state.step
        self._copied.clear()
        self._thread = threading.Thread(
            target=self._run, args=(view, step, rank, stages, patience, facts), name=f"checkpoint-{step}", daemon=True
        )
        self._thread.start()

    def before_apply(self) -> None:
        """Wait until the copy is taken: the state is about to change."""
        if not self._copied.wait(_COPY_TIMEOUT):
            raise TimeoutError(f"the state was not copied within {_COPY_TIMEOUT} s: is the machine out of memory?")

    def wait(self, timeout: float) -> None:
        """Wait for the checkpoint under way. Raises TimeoutError after ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(f"{self._thread.name} is not written after {timeout:g} s: is {self._root} reachable?")

    def _run(self, view: int, step: int, rank: int, stages: int, patience: float, facts: Facts | None) -> None:
        part: ManifestFile | None = None
        problem = ""
        started = time.time()
        try:
            try:
                _yield_to_compute()
                saved = self._state.saved
                if self._copy is None:
                    self._copy = torch.empty_like(saved, device="cpu")
                self._copy.copy_(saved)
            finally:
                self._copied.set()
            folder = make_folder(self._root, step)
            part = write_tensors(folder / rank_file(rank), self._state.tensors(self._copy))
        except (OSError, RuntimeError) as error:
            # RuntimeError: no memory for the copy. Training goes on; what is durable stays.
            problem = f"rank {rank} could not write: {error}"
        if facts is None:
            payload = {"part": None if part is None else part.to_json(), "problem": problem}
            self._transport.send(0, Envelope(view, Kind.PART, step, 0, rank, payload))
            return
        parts = [part]
        try:
            for other in range(1, stages):
                payload = self._transport.inbox.take(Kind.PART, step, 0, other, patience, view)
                parts.append(None if payload["part"] is None else ManifestFile.model_validate_json(payload["part"]))
                problem = problem or payload["problem"]
        except ViewBrokenError as error:
            log.info("checkpoint of step %d given up: %s", step, error)
            return
        if not problem:
            problem = self._commit(view, step, [p for p in parts if p is not None], facts, started)
        if problem:
            self._control.emit(EventKind.WARNING, f"checkpoint of step {step} failed: {problem}; training goes on")
        for other in range(1, stages):
            self._transport.send(other, Envelope(view, Kind.DURABLE, step, 0, rank, problem))

    def _commit(self, view: int, step: int, files: list[ManifestFile], facts: Facts, started: float) -> str:
        manifest = Manifest(view=view, step=step, files=files, **vars(facts))
        size = sum(file.size for file in files)
        try:
            commit_manifest(self._root / checkpoint_name(step), manifest)
        except (OSError, ValueError) as error:
            return f"its manifest could not be written: {error}"
        now = time.time()
        info = CheckpointInfo(name=checkpoint_name(step), step=step, size=size, best=facts.best, time=now)
        older = [c if not facts.best else c.model_copy(update={"best": False}) for c in self.known if c.step != step]
        self.known = [*older, info]
        removed = surplus(self.known, self._keep)
        try:
            remove(self._root, removed)
        except OSError as error:
            self._control.emit(EventKind.WARNING, f"old checkpoints could not be removed: {error}")
        self.known = [c for c in self.known if c.name not in removed]
        message = f"step {step}, {size / 1e6:.1f} MB in {now - started:.1f} s"
        self._control.emit(EventKind.CHECKPOINTED, message, checkpoint=info, removed=removed)
        return ""


def _yield_to_compute() -> None:
    # Linux has a nice value for each thread: writing goes on in what compute leaves over.
    if hasattr(os, "sched_getaffinity"):
        thread = threading.get_native_id()
        # Never nearer to zero than it is: that takes a privilege, which a worker that was started with a nice value lacks.
        os.setpriority(os.PRIO_PROCESS, thread, max(10, os.getpriority(os.PRIO_PROCESS, thread)))
