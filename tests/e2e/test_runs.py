"""A run that is looked at and stopped from another terminal, and goes on with fewer processors: with the threads that it began with,
to the same bits. Few steps: where other work shares the processors, threads wait for one another.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmj_operator.backend.local.threads import processors

from .jobs import DEADLINE, Job

pytestmark = pytest.mark.e2e

SETS = ("--set", "pipeline.stages=1", "--set", "training.threads=null", "--set", "training.maxSteps=30")


def lmj(job: Job, command: str, *arguments: str) -> str:
    line = [sys.executable, "-m", "lmj_operator.cli.main", command, str(job.output), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def threads(job: Job) -> int:
    value = json.loads((job.output / ".lmj" / "job.json").read_text())["spec"]["training"]["threads"]
    assert isinstance(value, int)
    return value


@pytest.mark.slow
def test_a_run_keeps_the_threads_that_it_began_with(tmp_path: Path) -> None:
    whole, job = Job(tmp_path / "whole"), Job(tmp_path / "stopped")
    done = whole.run(*SETS)
    assert done.returncode == 0, done.stdout + done.stderr
    there = processors()
    assert f"training.threads: {there} a rank ({there} processors for 1 ranks)" in done.stdout

    process = job.start(*SETS)
    job.wait_for_step(8, process)
    (found,) = json.loads(lmj(job, "list", "-o", "json"))
    assert (found["name"], found["process"], found["steps"]) == ("tiny", process.pid, 30)
    assert lmj(job, "stop").startswith("Suspended: ")
    assert process.wait(DEADLINE) == 130
    process.communicate()
    assert lmj(job, "logs", "--rank", "0").startswith("tiny-r0-1: ")

    one = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    limited = [] if one is None else ["taskset", "-c", str(one)]
    line = [*limited, sys.executable, "-m", "lmj_operator.cli.main", "run", str(job.file), "--plain", *SETS]
    again = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"training.threads: {there} a rank (as when the run began)" in again.stdout
    assert threads(job) == threads(whole) == there
    assert job.losses() == whole.losses()
    weights = Path("model", "model.safetensors")
    assert (job.output / weights).read_bytes() == (whole.output / weights).read_bytes()
