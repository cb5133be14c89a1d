"""Ways to save one state: this project's checkpoint, ``torch.distributed.checkpoint``, ``torch.save``, and a plain copy and write."""

from __future__ import annotations

import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse
from transformers import BertConfig

from lmj_api.spec import Checkpoint, Task
from lmj_api.topology import FIRST, Topology
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.model.stage import Stage
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.store.posix import folder
from lmj_trainer.task.registry import TASKS
from lmj_trainer.transport.memory import MemoryTransport
from lmj_trainer.worker.checkpointer import Checkpointer, ManifestFacts

OURS, SAVE, PLAIN = "this project", "torch.save", "plain copy and write"
ASYNC, STAGED = "dcp.async_save", "dcp.async_save, staged"
PATIENCE = 600.0
PIECE = 8 << 20
"""Bytes of one write of the plain way."""
STEP = 7
Compute = Callable[[], None]


@dataclass(frozen=True)
class Saved:
    """One checkpoint."""

    stall: float
    """Seconds for which the thread that computes waits before the state may change."""
    whole: float
    """Seconds until the checkpoint is on the disk."""
    processor: float
    """Seconds of processor time of the process."""


def make_state(config: BertConfig, layers: range) -> StageState:
    """The state of a stage with ``layers``, of which nothing is filled in."""
    stage = Stage(config, TASKS[Task.SEQUENCE_CLASSIFICATION].heads, layers, seed=1)
    return StageState(stage, torch.device("cpu"))


def fill(state: StageState) -> None:
    """Values of which no two are likely to be the same."""
    draw = torch.Generator().manual_seed(1)
    state.block.normal_(generator=draw)
    state.fill(STEP)


def separate(state: StageState) -> dict[str, torch.Tensor]:
    """The same tensors, each with memory of its own, as a model and an optimizer of PyTorch have them."""
    return {name: tensor.clone() for name, tensor in state.tensors()}


class Line:
    """What a checkpointer says to its agent."""

    def emit(self, kind: object, message: str = "", **details: object) -> None:
        """Show a warning; that a checkpoint failed is an error at its end."""
        if "failed" in message:
            print(f"{kind}: {message}", file=sys.stderr)


class Way(ABC):
    """One way to save ``state`` into a folder of its own, again and again."""

    name: str

    def __init__(self, state: StageState, place: Path) -> None:
        self.state, self.place = state, place
        place.mkdir()

    def save(self, compute: Compute = lambda: None) -> Saved:
        """Save the state once; ``compute``: what is done while it may not change yet. What was saved before goes."""
        self._empty()
        began, used = time.monotonic(), time.process_time()
        self.begin()
        stall = time.monotonic() - began
        compute()
        waits = time.monotonic()
        self.before_apply()
        stall += time.monotonic() - waits
        self.finish()
        whole, used = time.monotonic() - began, time.process_time() - used
        return Saved(stall, whole, used)

    def _empty(self) -> None:
        for path in self.place.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        os.sync()

    @abstractmethod
    def begin(self) -> None:
        """Begin it."""

    def before_apply(self) -> None:
        """Wait until the state may change."""
        return

    def finish(self) -> None:
        """Wait until it is on the disk."""
        return


class Ours(Way):
    """A job's only rank, with the threads and files of a worker."""

    name = OURS

    def __init__(self, state: StageState, place: Path) -> None:
        super().__init__(state, place)
        transport = MemoryTransport({}, "rank-0")
        transport.join(1, FIRST, {})
        self._step = STEP
        self._checkpointer = Checkpointer(
            folder(place), Checkpoint(keep=1), state, transport, cast("Any", Line()), Owner("job", "d")
        )
        self._checkpointer.begin(lambda: ([], ()))
        self._facts = ManifestFacts("job", "d", 0.5, 2.0, best=False, accuracy=None, best_step=None, best_score=None)

    def begin(self) -> None:
        """As of a step more: there is one checkpoint of each."""
        self._step += 1
        self.state.fill(self._step)
        self._checkpointer.start(FIRST, Topology(1), PATIENCE, self._facts)

    def before_apply(self) -> None:
        """The copy is taken."""
        self._checkpointer.before_apply()

    def finish(self) -> None:
        """Its manifest is written. Raises RuntimeError when it is not."""
        self._checkpointer.wait(PATIENCE)
        if self._checkpointer.problem != "":
            raise RuntimeError(f"no checkpoint: {self._checkpointer.problem}")


class Async(Way):
    """PyTorch's, as its documentation shows it. It returns when all is copied."""

    name = ASYNC

    def __init__(self, state: StageState, place: Path) -> None:
        super().__init__(state, place)
        self._tensors = separate(state)
        self._saving: Future[object] | None = None

    def begin(self) -> None:
        """All but the files."""
        writer = dcp.FileSystemWriter(self.place)
        self._saving = cast("Future[object]", dcp.async_save(self._tensors, storage_writer=writer, no_dist=True))

    def finish(self) -> None:
        """Its metadata are written."""
        assert self._saving is not None
        self._saving.result(PATIENCE)


class Staged(Way):
    """The same with its newer stager: a thread copies into memory that is kept. Without a GPU it has neither pinned memory nor streams."""

    name = STAGED

    def __init__(self, state: StageState, place: Path) -> None:
        super().__init__(state, place)
        self._tensors = separate(state)
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options)
        self._saving: AsyncSaveResponse | None = None

    def begin(self) -> None:
        """It begins to copy."""
        writer = dcp.FileSystemWriter(self.place)
        saving = dcp.async_save(self._tensors, storage_writer=writer, async_stager=self._stager, no_dist=True)
        self._saving = cast("AsyncSaveResponse", saving)

    def before_apply(self) -> None:
        """The copy is taken."""
        assert self._saving is not None
        self._saving.staging_completion.result(PATIENCE)

    def finish(self) -> None:
        """Its metadata are written."""
        assert self._saving is not None
        self._saving.upload_completion.result(PATIENCE)


class Save(Way):
    """One file, written by the thread that computes."""

    name = SAVE

    def __init__(self, state: StageState, place: Path) -> None:
        super().__init__(state, place)
        self._tensors = separate(state)

    def begin(self) -> None:
        """All of it."""
        with (self.place / "state.pt").open("wb") as file:
            torch.save(self._tensors, file)
            file.flush()
            os.fsync(file.fileno())


class Plain(Way):
    """A copy into memory that is there, and its bytes into a file: what no checkpoint can do without."""

    name = PLAIN

    def __init__(self, state: StageState, place: Path) -> None:
        super().__init__(state, place)
        self._copy = torch.zeros_like(state.saved)

    def begin(self) -> None:
        """The copy."""
        self._copy.copy_(self.state.saved)

    def finish(self) -> None:
        """The file."""
        content = memoryview(self._copy.numpy().data).cast("B")
        with (self.place / "state").open("wb", buffering=0) as file:
            for start in range(0, len(content), PIECE):
                file.write(content[start : start + PIECE])
            os.fsync(file.fileno())


WAYS: tuple[type[Way], ...] = (Ours, Async, Staged, Save, Plain)
