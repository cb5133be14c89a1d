"""A small job whose ranks all run in this process: the transport in memory, the line to the agent as a list."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lmj_api.layout import Layout
from lmj_api.names import checkpoint_name
from lmj_api.protocol import EventKind, Recut
from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Member, Resume, View
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.follow.follower import Follower
from lmj_trainer.model.config import load_config
from lmj_trainer.model.families.registry import FAMILIES
from lmj_trainer.model.stage import Stage
from lmj_trainer.model.whole import WholeStage
from lmj_trainer.own.batches import OwnBatches
from lmj_trainer.own.source import is_own, load_own
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.state.weights import freeze, initialise
from lmj_trainer.strategy.batches import Batches
from lmj_trainer.strategy.streamed import StreamedBatches
from lmj_trainer.task.registry import TASKS
from lmj_trainer.transport.feed import Offer
from lmj_trainer.transport.memory import MemoryTransport
from lmj_trainer.worker import restoring
from lmj_trainer.worker.member import own_stage
from lmj_trainer.worker.trainer import Trainer


class Line:
    """The line to the agent. ``on(event, details)`` hears everything first."""

    def __init__(self, on: Callable[[EventKind, dict[str, Any]], None] = lambda kind, details: None) -> None:
        self.draining = threading.Event()
        self.handover = 0
        self.pause = 0
        self.ordered = False
        self.events: list[tuple[EventKind, str, dict[str, Any]]] = []
        self.on = on

    def on_follower(self, call: Callable[[Member | None], None]) -> None:
        self.follow = call

    def on_recut(self, call: Callable[[Recut | None], None]) -> None:
        self.recut = call

    def emit(self, kind: EventKind, message: str = "", **details: Any) -> None:
        self.events.append((kind, message, details))
        self.on(kind, details)

    def of(self, kind: EventKind) -> list[tuple[str, dict[str, Any]]]:
        return [(message, details) for k, message, details in self.events if k is kind]

    def evaluated(self) -> dict[int, float]:
        return {d["evaluation"].step: d["evaluation"].accuracy for _, d in self.of(EventKind.EVALUATED)}


def small_job(tmp_path: Path) -> LiveMigrationJob:
    """64 rows for training and 16 for validation, in batches of 16: 12 steps in 3 epochs."""
    words = ["good", "bad"]
    rows = "".join(f"this one is {words[i % 2]} {i % 7},{'pn'[i % 2]}\n" for i in range(80))
    (tmp_path / "data.csv").write_text("text,label\n" + rows)
    scratch = {"layers": 2, "hiddenSize": 16, "heads": 2, "intermediateSize": 32, "vocabulary": 64, "maxPositions": 16}
    return LiveMigrationJob.model_validate(
        {
            "metadata": {"name": "small"},
            "spec": {
                "pipeline": {"stages": 1, "microBatches": 2},
                "model": {"scratch": scratch},
                "dataset": {
                    "source": str(tmp_path / "data.csv"),
                    "text": ["text"],
                    "label": "label",
                    "maxLength": 16,
                    "splits": {"validationFraction": 0.2},
                },
                "training": {"batchSize": 16, "epochs": 3, "learningRate": 1e-2},
                "checkpoint": {"keep": 9},
                "output": {"path": str(tmp_path / "out"), "weights": "Best"},
            },
        }
    )


def data_of(prepared: Any, job: LiveMigrationJob) -> Batches:
    """That of its steps and evaluations."""
    cpu = torch.device("cpu")
    if job.spec.dataset.streaming is not None:
        return StreamedBatches(prepared, job.spec, cpu, lambda text: None)
    return Batches(prepared, job.spec, cpu)


def make(
    job: LiveMigrationJob,
    line: Line,
    rank: int = 0,
    network: dict[str, MemoryTransport] | None = None,
    name: str | None = None,
    memory: int | None = None,
) -> Trainer:
    """``network``: of all ranks, where there are several. ``name``: its address there. ``memory``: the file that its state lies in."""
    spec = job.spec
    prepared = prepare(spec, Layout.of(spec).cache, lambda text: None)
    transport = MemoryTransport({} if network is None else network, name or f"rank-{rank}")
    if is_own(spec):
        part = own_stage(spec, rank)
        held = StageState(part, torch.device("cpu"), memory)
        part.set_training(True)
        data = OwnBatches(prepared, spec, torch.device("cpu"), load_own(spec.model))
        return Trainer(job, rank, prepared, data, part, held, transport, line)
    config = load_config(spec.model, prepared.labels, prepared.vocab_size)
    each = config.num_hidden_layers // spec.pipeline.stages
    heads, model = TASKS[spec.model.task].heads, spec.model
    if config.model_type not in FAMILIES:
        config.pad_token_id = config.pad_token_id or prepared.pad_id
        whole = WholeStage(config, heads, str(model.source), seed=spec.training.seed)
        held = StageState(whole, torch.device("cpu"), memory)
        whole.set_training(True)
        return Trainer(job, rank, prepared, data_of(prepared, job), whole, held, transport, line)
    number = spec.topology.stage(rank)
    layers = range(number * each, (number + 1) * each)
    stage = Stage(config, heads, layers, seed=spec.training.seed, lora=model.lora, source=model.source)
    freeze(stage, model, torch.device("cpu"))
    state = StageState(stage, torch.device("cpu"), memory)
    stage.set_training(True)
    return Trainer(job, rank, prepared, data_of(prepared, job), stage, state, transport, line)


def follow(trainer: Trainer, line: Line, after: float = 0.0) -> threading.Thread:
    """Have the worker follow whoever begins, ``after`` so many seconds; the thread ends when it follows no more."""
    offers: queue.SimpleQueue[Offer | None] = queue.SimpleQueue()
    transport = trainer._transport
    strategy, expect = trainer.strategy, trainer._batches.expect
    follower = Follower(transport.feed, trainer._state, trainer.optimizer, transport, line, strategy.rehearse, expect)
    transport.feed.listen(offers.put)

    def work() -> None:
        offer = offers.get()
        assert offer is not None
        time.sleep(after)
        follower.run(offer)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def draw_in_turn(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """Have the ranks of a job draw their first weights one after the other, and train when all have.

    Here they share the generator of the process: each draws from it, and one that trains seeds it, while another draws, too.
    """
    turn, drawn = threading.Lock(), threading.Barrier(ranks)

    def in_turn(*arguments: Any) -> Any:
        with turn:
            fresh = initialise(*arguments)
        drawn.wait(60)
        return fresh

    monkeypatch.setattr(restoring, "initialise", in_turn)


def view(number: int, resume: Resume, ranks: int = 1) -> View:
    members = [Member(rank=rank, pod=f"small-r{rank}-1", incarnation=1, address=f"rank-{rank}") for rank in range(ranks)]
    return View(number=number, members=members, resume=resume, reason="test")


def start() -> Resume:
    return Resume(step=0)


def at(step: int, view: int = 1) -> Resume:
    return Resume(step=step, checkpoint=checkpoint_name(step, view))


def losses(job: LiveMigrationJob) -> list[float]:
    lines = [json.loads(line) for line in (Path(job.spec.output.path) / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def weights(job: LiveMigrationJob) -> dict[str, torch.Tensor]:
    return load_file(Path(job.spec.output.path) / "model" / "model.safetensors")


def elsewhere(job: LiveMigrationJob, output: Path) -> LiveMigrationJob:
    spec = job.spec.model_copy(update={"output": job.spec.output.model_copy(update={"path": str(output)})})
    return job.model_copy(update={"spec": spec})
