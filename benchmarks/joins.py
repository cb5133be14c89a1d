"""A second replica joins a job that trains: what its steps take meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from killable import Ours
from move import BEFORE, first_times
from sizes import BASE, MICRO_BATCHES
from ways import status_of, wait

from lmj_operator.backend.local.store import RunStore, Scale

SETS = {**BASE.sets, "pipeline.stages": 1, "dataParallel.shards": 2, "dataParallel.replicas": 1}
assert MICRO_BATCHES % 2 == 0


@dataclass(frozen=True)
class Join:
    """One of them."""

    step: float
    """Median step before it, seconds."""
    longest: float
    """Longest step from the request to the first one that both computed, seconds. It includes the change of the view."""
    quiet: float
    """Longest step of as many before the request: so much is the machine's."""
    steps: int
    """Steps from the request to the join."""
    together: float
    """Median step of both replicas."""

    @property
    def ratio(self) -> float:
        """Median steps that the longest took."""
        return self.longest / self.step

    def __str__(self) -> str:
        longest = f"longest of {self.steps} steps {self.longest:.3f} s, {self.ratio:.2f} of the median {self.step:.3f} s"
        return f"{longest} (before: {self.quiet / self.step:.2f}); together {self.together:.3f} s"


def measure(folder: Path, joins: int, say: Callable[[str], None]) -> list[Join]:
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
    wait(job, f"step {switch + BEFORE}", lambda: job.look() >= switch + BEFORE)
    times = first_times(job.seen)
    before = [b - a for (a, _), (b, _) in pairwise([entry for entry in times if entry[0] <= begun][-BEFORE - 1 :])]
    during = [b - a for (a, _), (b, step) in pairwise(times) if b > begun and step <= switch + 1]
    after = [b - a for (a, _), (b, step) in pairwise(times) if step > switch + 1]
    return Join(statistics.median(before), max(during), max(before), len(during), statistics.median(after))


def _scale(job: Ours, replicas: int) -> None:
    RunStore(job.folder / ".lmj").write_scale(Scale(replicas=replicas))
    wait(job, f"{replicas} replicas", lambda: status_of(job).replicas == replicas)


def _steps(job: Ours, count: int) -> None:
    target = job.look() + count
    wait(job, f"step {target}", lambda: job.look() >= target)
