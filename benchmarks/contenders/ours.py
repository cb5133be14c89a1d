"""This project's engine, with clipping and commit: two stages, or with ``replicas`` two copies of the whole model, which share a step's
shards. ``BENCH_CHECKPOINT``: a folder to write a checkpoint into every 10 steps. ``BENCH_RELAYS``: the sockets of both ranks' relays, if what
they say to each other is encrypted.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import THREADS, Workload, answer, serve

from lmj_api.protocol import EventKind
from lmj_api.spec import Checkpoint, Training
from lmj_api.topology import Topology
from lmj_trainer.data.order import Indices, micro_batches
from lmj_trainer.group.commit import Decision, agree
from lmj_trainer.group.group import Group
from lmj_trainer.model.inputs import Inputs
from lmj_trainer.model.partition import partition
from lmj_trainer.model.stage import Place, Stage
from lmj_trainer.relay.line import RelayLine
from lmj_trainer.state.optimizer import AdamW
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.store import posix
from lmj_trainer.strategy.pipeline.pipeline import Pipeline
from lmj_trainer.task.sequence_classification.heads import HEADS
from lmj_trainer.task.sequence_classification.objective import TextObjective
from lmj_trainer.transport.tensorpipe import TensorPipeTransport
from lmj_trainer.worker.checkpointer import Checkpointer, ManifestFacts

work = Workload.from_environment()
torch.set_num_threads(THREADS)
rank = int(os.environ["RANK"])
topology = Topology(1, 2) if sys.argv[1:] == ["replicas"] else Topology(2)


class Batches:
    """The benchmark's batches behind the engine's interface."""

    shards = topology.replicas

    def fetch(self, step: int, check: Callable[[], None]) -> None:
        """All of it is in memory."""

    def train(self, step: int) -> list[list[Indices]]:
        self._data = work.data(step)
        # As pipeline.firstInHalves: a single stage waits for nobody.
        cut = partial(micro_batches, parts=work.micro_batches // self.shards, in_halves=topology.stages > 1)
        return [cut(rows) for rows in np.split(np.arange(work.batch), self.shards)]

    def targets(self, split: str, rows: Indices, place: Place | None = None) -> torch.Tensor:
        return self._data[2][rows]

    def inputs(self, split: str, rows: Indices, place: Place | None = None) -> Inputs:
        ids, mask, labels = self._data
        return Inputs(ids[rows], mask[rows], None, labels[rows])


class Quiet:
    """Stands where the line to the agent is: there is none here."""

    def emit(self, kind: EventKind, message: str = "", **details: Any) -> None:
        if kind is EventKind.WARNING:
            raise RuntimeError(message)


training = Training(batch_size=work.batch, learning_rate=work.learning_rate, max_grad_norm=work.max_grad_norm)
stage = Stage(work.config(), HEADS, partition(work.layers, topology.stages)[topology.stage(rank)], seed=0)
# In a file, as the agent gives it to a worker.
state = StageState(stage, torch.device("cpu"), os.memfd_create("state"))
with torch.no_grad():
    for name, module in stage.modules_by_name():
        stage.initialise(name, module)
state.fill(0)
stage.set_training(True)
relays = os.environ.get("BENCH_RELAYS")
transport = TensorPipeTransport(gateway=RelayLine(Path(relays.split(os.pathsep)[rank])) if relays else None)
answer(address=transport.address)
peer = sys.stdin.readline().strip()
transport.join(1, rank, {1 - rank: peer})
group = Group(transport, rank, topology, 600.0)
pipeline = Pipeline(stage, state, group, Batches(), TextObjective(("0", "1")))  # type: ignore[arg-type]
optimizer = AdamW(state, training)
folder = os.environ.get("BENCH_CHECKPOINT")
checkpointer = Checkpointer(posix.folder(Path(folder or ".")), Checkpoint(keep=2), state, transport, Quiet()) if folder else None  # type: ignore[arg-type]


def step(number: int) -> None:
    due = checkpointer is not None and (number + 1) % 10 == 5 and not checkpointer.busy
    losses, rate = pipeline.gradients(number), training.learning_rate
    commit = agree(group, state, losses, pipeline.whole, training.max_grad_norm, rate, lambda wish: Decision(checkpoint=due))
    if checkpointer is not None:
        checkpointer.before_apply()
    optimizer.apply()
    if checkpointer is not None and commit.decision.checkpoint:
        facts = ManifestFacts("bench", "0" * 32, 0.0, time.time(), False, None, None, None) if rank == 0 else None
        checkpointer.start(rank, topology, 600.0, facts)


serve(step)
