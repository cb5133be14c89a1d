"""A strategy is a class and a line in the registry: here a second one, which trains the whole model in one process, as a plain loop does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from lmj_api.protocol import EventKind, WorkerPhase
from lmj_api.spec import LiveMigrationJob, Strategy
from lmj_api.view import Resume
from lmj_trainer.model.stage import Place
from lmj_trainer.strategy.registry import STRATEGIES
from lmj_trainer.transport.inbox import ViewBrokenError

from .small_job import Line, elsewhere, losses, make, start, view, weights

pytestmark = pytest.mark.integration

if TYPE_CHECKING:
    from lmj_trainer.group.commit import Report
    from lmj_trainer.group.group import Group
    from lmj_trainer.model.stage import Stage
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.strategy.batches import Batches
    from lmj_trainer.task.port import Counts, Objective


class PlainLoop:
    """Every rank would compute all of it, so there is one."""

    def __init__(self, stage: Stage, state: StageState, group: Group, batches: Batches, objective: Objective) -> None:
        assert group.topology.size == 1
        self.stage, self.group, self.batches, self.objective = stage, group, batches, objective
        self.compute_seconds = 0.0

    def gradients(self, step: int, final: Callable[[torch.Tensor], None] | None = None) -> list[float]:
        self.group.check()
        begin = time.monotonic()
        (shard,) = self.batches.train(step)
        batch = [self.batches.inputs("train", rows) for rows in shard]
        samples = sum(self.objective.samples(inputs.labels) for inputs in batch)
        parts = []
        for number, inputs in enumerate(batch):
            loss = self.objective.loss(self.stage(inputs, None, Place(step, number)), inputs.labels)
            loss = loss * (self.objective.samples(inputs.labels) / samples)
            loss.backward()  # type: ignore[no-untyped-call]
            parts.append(loss.item())
        self.compute_seconds = time.monotonic() - begin
        for _, weight in self.stage.parameters_by_name():
            if final is not None:
                final(weight)
        return parts

    def whole(self, reports: Sequence[Report]) -> tuple[float, torch.Tensor]:
        (report,) = reports
        return sum(report.losses), report.norms

    @torch.no_grad()
    def evaluate(self, split: str, step: int, tick: Callable[[int, int], None]) -> Counts | None:
        counts = self.objective.counts()
        self.stage.set_training(False)
        for number, rows in enumerate(self.batches.evaluation(split)):
            inputs = self.batches.inputs(split, rows)
            counts.add(number, self.stage(inputs, None, None), inputs.labels)
        self.stage.set_training(True)
        return counts

    def rehearse(self) -> None:
        """Nothing is chosen again."""


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, Strategy.PIPELINE, PlainLoop)


def test_it_trains_to_the_same_bits(job: LiveMigrationJob, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    other = elsewhere(job, tmp_path / "pipeline")
    assert make(other, Line()).run(view(1, start())) is WorkerPhase.COMPLETED
    request.getfixturevalue("plain")
    trainer = make(job, Line())
    assert isinstance(trainer.strategy, PlainLoop)
    assert trainer.run(view(1, start())) is WorkerPhase.COMPLETED
    assert losses(job) == losses(other)
    assert all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(job).items())


@pytest.mark.usefixtures("plain")
def test_it_goes_on_from_memory_and_takes_checkpoints_as_any_other(job: LiveMigrationJob, tmp_path: Path) -> None:
    whole = elsewhere(job, tmp_path / "whole")
    make(whole, Line()).run(view(1, start()))
    line = Line()
    trainer = make(job, line)
    inbox = trainer._transport.inbox
    line.on = lambda kind, details: (
        inbox.supersede(2, "test") if kind is EventKind.COMMITTED and details["progress"].step == 5 else None
    )
    with pytest.raises(ViewBrokenError):
        trainer.run(view(1, start()))
    line.on = lambda kind, details: None
    assert trainer.run(view(2, Resume(step=5))) is WorkerPhase.COMPLETED
    assert line.of(EventKind.CHECKPOINTED)
    assert losses(job) == losses(whole)
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(job).items())
