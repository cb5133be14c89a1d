"""One of four replicas dies: from the kill to the next new step, here and under torchrun, which starts all its processes again."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from killable import Ours, Torchrun
from move import firsts
from progress import Say
from recovery import Trial, step_seconds
from recovery import trial as kill_worker
from steps import Steps
from ways import status_of, views, wait

REPLICAS = 4
SETTLED = 8
"""New steps before the next death."""
SETS: Mapping[str, object] = {
    "pipeline.stages": 1,
    "pipeline.microBatches": REPLICAS,
    "dataParallel.shards": REPLICAS,
    "dataParallel.replicas": REPLICAS,
}


@dataclass(frozen=True)
class Deaths:
    """What the deaths of a contender cost."""

    trials: list[Trial]
    step: float
    """Median step, seconds."""
    again: int
    """Steps whose samples were seen more than once."""
    missing: int
    """Steps that the record does not have."""


def ours(folder: Path, deaths: int, source: random.Random, say: Say) -> Deaths:
    """Kill pods, agent and worker at once, of a job of four replicas."""
    job = Ours(folder, SETS)
    trials: list[Trial] = []
    job.start()
    try:
        for number in range(deaths):
            _settle(job, source, lambda: _members(job) == REPLICAS)
            trials.append(_death(job, source.randrange(REPLICAS)))
            say(f"{job.name}: {number + 1}/{deaths}, {trials[-1]}")
        _settle(job, source, lambda: _members(job) == REPLICAS)
    finally:
        job.stop()
    return Deaths(trials, step_seconds(job), *_counted(job.folder))


def torchrun(folder: Path, data: Path, deaths: int, source: random.Random, say: Say) -> Deaths:
    """Kill workers of four."""
    job = Torchrun(folder, data, SETS, REPLICAS)
    trials: list[Trial] = []
    job.start()
    try:
        for number in range(deaths):
            _settle(job, source, lambda: len(job.workers()) == REPLICAS)
            trials.append(kill_worker(job, source.randrange(REPLICAS)))
            say(f"{job.name}: {number + 1}/{deaths}, {trials[-1]}")
        _settle(job, source, lambda: len(job.workers()) == REPLICAS)
    finally:
        job.stop()
    return Deaths(trials, step_seconds(job), *_counted(job.folder))


def _settle(job: Ours | Torchrun, source: random.Random, whole: Callable[[], bool]) -> None:
    """Wait until all are there, and for as many steps as tell what one takes; then a moment, so that death comes anywhere within one."""
    wait(job, "a first step", lambda: job.look() > 0)
    wait(job, f"{REPLICAS} replicas", whole)
    target = job.look() + SETTLED
    wait(job, f"step {target}", lambda: job.look() >= target)
    time.sleep(source.uniform(0.5, 1.5))


def _members(job: Ours) -> int:
    view = status_of(job).view
    return len(view.members) if view is not None else 0


def _death(job: Ours, rank: int) -> Trial:
    """Kill the pod of ``rank``. What counts is the first step of the view that was formed without it: survivors may commit one that it had
    prepared.
    """
    before = status_of(job)
    assert before.view is not None
    pod = before.ranks[rank].pod
    assert pod is not None
    killed, workers = time.time(), set(job.workers().values())
    os.killpg(job.agent(pod), signal.SIGKILL)
    number = before.view.number + 1
    wait(job, f"view {number}", lambda: number in views(job.folder / "logs"))
    step = views(job.folder / "logs")[number] + 1
    wait(job, f"step {step}", lambda: job.look() >= step)
    fresh = set(job.workers().values()) - workers
    return Trial(job.name, rank, firsts(job.seen)[step] - killed, status_of(job).steps_lost - before.steps_lost, len(fresh))


def _counted(folder: Path) -> tuple[int, int]:
    """Steps that were done more than once by the job's own record, and steps that are not in it."""
    record = Steps(folder / "metrics.jsonl")
    highest = record.look()
    lines = Counter(line["step"] for line in record.lines())
    return sum(times - 1 for times in lines.values()), highest - len(lines)


def median(trials: list[Trial]) -> float:
    """Seconds to the next new step."""
    return statistics.median(float("inf") if t.seconds is None else t.seconds for t in trials)
