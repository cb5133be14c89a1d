"""A worker that dies at the same step each time: the ladder is climbed, and the budget ends the job with the step in the message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .jobs import DEADLINE, Job, wait_until

pytestmark = pytest.mark.e2e

POISON = 7
"""The step that no worker survives."""

# Steps that take long beside what it takes to kill a worker within one.
SLOW = {
    "training.maxSteps": 12,
    "training.batchSize": 96,
    "model.scratch.hiddenSize": 384,
    "model.scratch.intermediateSize": 1536,
    "checkpoint.everySteps": 4,
    "recovery.backoffSeconds": 0.1,
}


@contextmanager
def running(job: Job, **recovery: int) -> Iterator[subprocess.Popen[str]]:
    """The run of ``job``; nothing is left of it when the test fails."""
    sets = {**SLOW, **{f"recovery.{name}": value for name, value in recovery.items()}}
    process = job.start("--plain", *(word for path, value in sets.items() for word in ("--set", f"{path}={value}")))
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        wait_until(lambda: not job.processes(), seconds=10)


def poisoned(job: Job, process: subprocess.Popen[str], view: int) -> dict[str, Any]:
    """Wait until ``view`` is within the step that kills, and have it kill rank 1's worker. The status then."""

    def there() -> bool:
        try:
            status = job.status()
        except FileNotFoundError:
            return False
        at = status["view"] is not None and status["view"]["number"] == view and status["phase"] == "Running"
        return bool(at and status["progress"]["step"] >= POISON - 1)

    wait_until(there, process)
    found = job.status()
    os.kill(job.worker(1), signal.SIGKILL)
    return found


@pytest.mark.slow
def test_the_budget_ends_it_and_memory_is_not_believed_for_ever(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with running(job, maxRestarts=5, workerRestarts=10) as process:
        seen = [poisoned(job, process, view) for view in range(1, 7)]
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, out + err
    reasons = [status["view"]["reason"].rpartition("; ")[2] for status in seen]
    step = POISON - 1
    assert reasons[1:4] == [f"goes on from step {step}, which all have in memory"] * 3
    run = json.loads((job.output / ".lmj" / "job.json").read_text())["metadata"]["uid"][:8]
    back = f"goes back to checkpoint step-000000004-v1-{run} because what is in memory failed"
    assert reasons[4:] == [f"{back} {tries} times in a row" for tries in (4, 5)]
    status = job.status()
    assert status["phase"] == "Failed"
    assert status["message"].endswith(f"recovery.maxRestarts 5 is used up, the last 6 of them on step {POISON}")
    assert status["message"] in err


def test_it_costs_the_worker_then_the_pod(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with running(job, maxRestarts=5, workerRestarts=1) as process:
        pods = [poisoned(job, process, view)["ranks"][1]["pod"] for view in range(1, 4)]
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert pods == ["tiny-r1-1", "tiny-r1-1", "tiny-r1-2"]
    status = job.status()
    assert (status["phase"], status["restarts"]) == ("Succeeded", 3)
    why = "the pod is replaced because 1 restarts of its worker brought no new step (recovery.workerRestarts 1)"
    assert status["incidents"][1]["message"].endswith(why)
    assert status["nodes"] == [], "one machine has no node to avoid"
    assert list(job.losses()) == list(range(1, 13))
