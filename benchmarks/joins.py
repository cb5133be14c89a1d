"""A second replica joins a job that trains: what its steps take meanwhile."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from killable import Ours
from move import first_times
from progress import Say
from sizes import BASE, MICRO_BATCHES
from ways import status_of, wait

from lmj_operator.backend.local.store import RunStore, Scale

SETS = {**BASE.sets, "pipeline.stages": 1, "dataParallel.shards": 2, "dataParallel.replicas": 1}
assert MICRO_BATCHES % 2 == 0
BEFORE = 16
"""Steps before a request. It takes about a dozen to join."""
AFTER = 11
"""Steps that both have computed, before one leaves again."""


@dataclass(frozen=True)
class Join:
    """One of them."""

    step: float
    """Median step before it, seconds."""
    longest: float
    """Longest step from the request to the first one that both computed, seconds. It includes the change of the view."""
    quiet: float
    """Longest step of as many before the request: one of so many takes that long on this machine without a join."""
    steps: int
    """Steps from the request to the join."""
    together: float
    """Median step of both replicas."""

    @property
    def ratio(self) -> float:
        """Median steps that the longest took."""
        return self.longest / self.step

    @property
    def cost(self) -> float:
        """The longest step over the longest of as many before: what the machine does to a step by itself is no cost of a join."""
        return self.longest / self.quiet

    def __str__(self) -> str:
        longest = f"longest of {self.steps} steps {self.longest:.3f} s, {self.ratio:.2f} of the median {self.step:.3f} s"
        return f"{longest} (of as many before: {self.quiet / self.step:.2f}), {self.cost:.2f} of that; together {self.together:.3f} s"


def measure(folder: Path, joins: int, say: Say) -> list[Join]:
    """Scale a job of BERT-base from one replica to two and back; on two cores the second has one of its own."""
    job = Ours(folder, SETS)
    done = []
    job.start()
    try:
        wait(job, "a first step", lambda: job.look() > 0)
        for number in range(joins):
            done.append(_join(job))
            say(f"join {number + 1}/{joins}: {done[-1]}")
            _scale(job, 1)
    finally:
        job.stop()
    return done


def _join(job: Ours) -> Join:
    _steps(job, BEFORE + 1)
    begun = time.time()
    _scale(job, 2)
    view = status_of(job).view
    assert view is not None
    switch = view.resume.step
    wait(job, f"step {switch + AFTER}", lambda: job.look() >= switch + AFTER)
    times = first_times(job.seen)
    before = [b - a for (a, _), (b, _) in pairwise([entry for entry in times if entry[0] <= begun][-BEFORE - 1 :])]
    assert len(before) == BEFORE
    during = [b - a for (a, _), (b, step) in pairwise(times) if b > begun and step <= switch + 1]
    after = [b - a for (a, _), (b, step) in pairwise(times) if step > switch + 1]
    return Join(statistics.median(before), max(during), max(before[-len(during) :]), len(during), statistics.median(after))


def _scale(job: Ours, replicas: int) -> None:
    RunStore(job.folder / ".lmj").write_scale(Scale(replicas=replicas))
    wait(job, f"{replicas} replicas", lambda: status_of(job).replicas == replicas)


def _steps(job: Ours, count: int) -> None:
    target = job.look() + count
    wait(job, f"step {target}", lambda: job.look() >= target)
