"""A job whose layers are cut anew while it trains learns what one learns that is left alone, to the bit: all ranks in this process."""

from __future__ import annotations

import math
import runpy
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from lmj_api.cut import Cut
from lmj_api.protocol import EventKind, Holding, Recut, WorkerPhase
from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Member, Resume, View
from lmj_trainer.follow import source as source_module
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.memory import MemoryTransport

from .small_job import Line, draw_in_turn, elsewhere, follow, losses, make, start, weights

pytestmark = pytest.mark.integration

SECONDS = 60.0
SECONDS_OF_A_COPY = 0.5
"""Many times a step."""
STOP_AND_COPY = Path(__file__).parents[3] / "benchmarks" / "contenders" / "stop_and_copy" / "sitecustomize.py"


def of(job: LiveMigrationJob, folder: Path, *, lora: bool = False) -> LiveMigrationJob:
    """``job`` of four layers, without dropout, whose generator is the process's."""
    document = elsewhere(job, folder).model_dump(by_alias=True, mode="json")
    document["spec"]["pipeline"] |= {"stages": 1, "microBatches": 4}
    document["spec"]["dataParallel"] = {"shards": 4}
    document["spec"]["model"]["scratch"] |= {"dropout": 0.0, "layers": 6}
    if lora:
        document["spec"]["model"]["lora"] = {}
    return LiveMigrationJob.model_validate(document)


class Cutting:
    """All ranks of a job in one cut, each with its follower, on a network that is shared by those of other cuts."""

    def __init__(self, job: LiveMigrationJob, stages: int, replicas: int, network: dict[str, MemoryTransport], name: str) -> None:
        self.job = job.model_copy(update={"spec": job.spec.scaled(replicas, stages)})
        self.cut, self.name = Cut(stages=stages), name
        self.lines = [Line() for _ in range(stages * replicas)]
        self.trainers = [make(self.job, line, r, network, f"{name}-{r}") for r, line in enumerate(self.lines)]

    def members(self) -> list[Member]:
        ranks = range(len(self.trainers))
        return [Member(rank=r, pod=f"{self.name}-{r}", incarnation=1, address=f"{self.name}-{r}") for r in ranks]

    def run(self, number: int, resume: Resume) -> list[WorkerPhase | ViewBrokenError]:
        view = View(number=number, members=self.members(), cut=self.cut, resume=resume, reason="test")

        def go(trainer: Any) -> WorkerPhase | ViewBrokenError:
            try:
                return trainer.run(view)
            except ViewBrokenError as error:
                return error

        with ThreadPoolExecutor(len(self.trainers)) as pool:
            futures = [pool.submit(go, trainer) for trainer in self.trainers]
            return [future.result(SECONDS) for future in futures]

    def listen(self, after: float) -> list[threading.Thread]:
        """Have each follow whoever begins, ``after`` so many seconds."""
        return [follow(trainer, line, after) for trainer, line in zip(self.trainers, self.lines, strict=True)]

    def in_sync(self) -> bool:
        told = [line.of(EventKind.FOLLOWING) for line in self.lines]
        return all(each and each[-1][1]["holding"] is not None for each in told)


def recut(old: Cutting, new: Cutting, number: int, resume: Resume, copies: float = 0.0) -> int:
    """``old`` trains, ``new`` follows and takes over: at the step that is returned. ``copies``: seconds that a follower takes to begin."""
    threads = new.listen(copies)
    begin, there = resume.step + 1, threading.Event()
    stages = old.cut.stages

    def ask(rank: int, line: Line) -> None:
        """Each replica that trains is followed by one of the next cut."""
        replica = rank // stages
        members = [m for m in new.members() if m.rank // new.cut.stages == replica]
        line.recut(Recut(cut=new.cut, followers=members))

    def on(rank: int, line: Line) -> Callable[[EventKind, dict[str, Any]], None]:
        def heard(kind: EventKind, details: dict[str, Any]) -> None:
            step = details["progress"].step if kind is EventKind.COMMITTED else None
            if step == begin:
                ask(rank, line)
            elif step == begin + 1:
                assert not copies or all(trainer._source.in_sync for trainer in old.trainers)
                # All followed are between two steps meanwhile.
                assert there.wait(SECONDS)
                line.handover = number

        return heard

    for rank, line in enumerate(old.lines):
        line.on = on(rank, line)
    watch = threading.Thread(target=_watch, args=(new, there), daemon=True)
    watch.start()
    ends = old.run(number, resume)
    # At the next boundary, or later: a checkpoint of the best weights that is being written is waited for.
    step = next(step for step in range(begin + 2, 100) if f"from step {step} on" in str(ends[0]))
    assert all(str(end) == f"the next view has other members, from step {step} on" for end in ends), ends
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    for line, trainer in zip(new.lines, new.trainers, strict=True):
        assert line.events[-1][0] is EventKind.LOST_PEER
        assert line.events[-1][2]["holding"] == Holding(step=step)
        trainer._transport.feed.listen(None)
    return step


def _watch(new: Cutting, there: threading.Event) -> None:
    changed = threading.Condition()

    def heard(kind: EventKind, details: dict[str, Any]) -> None:
        with changed:
            changed.notify_all()

    for line in new.lines:
        line.on = heard
    with changed:
        if changed.wait_for(new.in_sync, SECONDS):
            there.set()


WAYS = [[(1, 1), (2, 1), (3, 1), (2, 1)], [(2, 1), (1, 1)], [(1, 2), (2, 2)], [(2, 2), (1, 2)]]


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_losses_and_weights_are_those_of_a_job_that_is_left_alone(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: list[tuple[int, int]], lora: bool
) -> None:
    alone, changed = of(job, tmp_path / "alone", lora=lora), of(job, tmp_path / "changed", lora=lora)
    whole = Cutting(alone, 1, 1, {}, "whole")
    assert whole.run(1, start()) == [WorkerPhase.COMPLETED]
    network: dict[str, MemoryTransport] = {}
    draw_in_turn(monkeypatch, math.prod(way[0]))
    now, resume = Cutting(changed, *way[0], network, "cut-0"), start()
    for number, shape in enumerate(way[1:], 1):
        after = Cutting(changed, *shape, network, f"cut-{number}")
        resume = Resume(step=recut(now, after, number, resume))
        now = after
    assert now.run(len(way), resume) == [WorkerPhase.COMPLETED] * len(now.trainers)
    assert losses(changed) == losses(alone)
    assert all(torch.equal(tensor, weights(changed)[name]) for name, tensor in weights(alone).items())
    evaluated = [{k: v for line in each.lines for k, v in line.evaluated().items()} for each in (whole, now)]
    assert evaluated[1].items() <= evaluated[0].items()


def test_with_the_benchmark_s_stop_and_copy_followers_are_in_sync_at_the_next_boundary(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(source_module.Source, "boundary", source_module.Source.boundary)
    runpy.run_path(str(STOP_AND_COPY))["stop"](source_module)
    changed = of(job, tmp_path)
    network: dict[str, MemoryTransport] = {}
    now, after = Cutting(changed, 1, 1, network, "old"), Cutting(changed, 2, 1, network, "new")
    resume = Resume(step=recut(now, after, 1, start(), SECONDS_OF_A_COPY))
    assert after.run(2, resume) == [WorkerPhase.COMPLETED] * 2
