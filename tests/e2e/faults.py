"""Faults for a running job, in an order that a seed decides."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from jobs import Job, wait_until

NEW_STEPS = 3
"""Steps after a fault that show that it is over: the first may have been on its way already."""
STOPPED_SECONDS = 1.0
WITHIN_A_STEP = 0.03
RECOVERY_SECONDS = 0.3
"""About as long as a worker's replacement takes: a second fault in it comes at any point of that."""


class Kind(StrEnum):
    """What is done to the job."""

    WORKER = "SIGKILL of a worker"
    BOTH = "SIGKILL of both workers"
    TWICE = "SIGKILL of a worker, and of another before it is over"
    WARM = "SIGKILL of a fork server"
    STOP = "SIGSTOP of a worker, SIGCONT a second later"
    POD = "SIGKILL of a pod"


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: Kind
    rank: int
    second: int
    """Rank of the second process, where two are hit one after the other: it may be the same."""
    steps: int
    """It comes so many new steps after the one before was over ..."""
    seconds: float
    """... and so long: somewhere within a step."""

    def __str__(self) -> str:
        return f"{self.kind} (rank {self.rank})"


def plan(seed: int, counts: Mapping[Kind, int]) -> list[Fault]:
    """``counts`` of each kind in any order, each at any rank."""
    source = random.Random(seed)
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    source.shuffle(kinds)
    return [
        Fault(kind, source.randrange(2), source.randrange(2), source.randint(0, 12), source.uniform(0, WITHIN_A_STEP))
        for kind in kinds
    ]


def last_step(job: Job) -> int:
    """The newest committed step; 0: none."""
    return newest_step(job.metrics)


def newest_step(metrics: Path) -> int:
    """The last step in a job's metrics; 0: none."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1000))
            line = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    except FileNotFoundError:
        return 0
    return int(json.loads(line)["step"]) if line else 0


def go_through(job: Job, process: subprocess.Popen[str], faults: list[Fault], steps: int) -> None:
    """Have ``faults`` happen to the running job of ``steps`` steps, one after the other. AssertionError: it does not come back."""
    began, highest = time.monotonic(), 0
    for number, fault in enumerate(faults, 1):
        highest = _new_steps(job, process, highest, NEW_STEPS + fault.steps)
        time.sleep(fault.seconds)
        before = last_step(job)
        assert before < steps - 2, f"only {number - 1} faults before the job's end: it needs more steps"
        print(f"{time.monotonic() - began:6.1f} s  step {before:4d}  fault {number}: {fault}", flush=True)
        inject(job, fault)
        highest = max(before, last_step(job))
    _new_steps(job, process, highest, NEW_STEPS)


def inject(job: Job, fault: Fault) -> None:
    """Do it."""
    match fault.kind:
        case Kind.WORKER:
            os.kill(job.worker(fault.rank), signal.SIGKILL)
        case Kind.BOTH:
            for pid in [job.worker(fault.rank), job.worker(1 - fault.rank)]:
                os.kill(pid, signal.SIGKILL)
        case Kind.TWICE:
            os.kill(job.worker(fault.rank), signal.SIGKILL)
            time.sleep(RECOVERY_SECONDS * fault.seconds / WITHIN_A_STEP)
            with suppress(AssertionError, ProcessLookupError):  # the successor is not born yet
                os.kill(job.worker(fault.second), signal.SIGKILL)
        case Kind.WARM:
            os.kill(job.fork_server(fault.rank), signal.SIGKILL)
        case Kind.STOP:
            pid = job.worker(fault.rank)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            os.kill(pid, signal.SIGCONT)
        case Kind.POD:
            os.killpg(job.agent(fault.rank), signal.SIGKILL)


def _new_steps(job: Job, process: subprocess.Popen[str], before: int, count: int) -> int:
    """Wait for ``count`` steps after ``before``; the newest."""
    wait_until(lambda: last_step(job) >= before + count, process)
    return last_step(job)
