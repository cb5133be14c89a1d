"""Pods that are killed whole, and standbys that take their places."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faults import last_step
from jobs import DEADLINE, Job, wait_until

pytestmark = pytest.mark.e2e

STEPS = 100_000
"""More than the test waits for."""
NEW_STEPS = 5


@contextmanager
def running(job: Job, *sets: str) -> Iterator[subprocess.Popen[str]]:
    """A run of ``job`` that is ended by Ctrl-C; nothing is left of it when the test fails."""
    every = [f"training.maxSteps={STEPS}", f"training.epochs={STEPS}", *sets]
    process = job.start("--plain", *(word for text in every for word in ("--set", text)))
    try:
        yield process
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 130, out + err
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        wait_until(lambda: not job.processes(), seconds=10)


def standbys(job: Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job.status()["standbys"]
    return found


def wait_until_warm(job: Job, process: subprocess.Popen[str]) -> str:
    """Name of the only standby, once it is warm."""
    wait_until(lambda: (job.output / ".lmj" / "status.json").exists() and job.status()["warmStandbys"] == 1, process)
    (only,) = standbys(job)
    return str(only["pod"])


def kill(job: Job, process: subprocess.Popen[str], rank: int) -> dict[str, Any]:
    """SIGKILL the pod of ``rank`` with all of its processes; the incident, when training goes on."""
    incidents, before = len(job.status()["incidents"]), last_step(job)
    began = time.monotonic()
    os.killpg(job.agent(rank), signal.SIGKILL)
    wait_until(lambda: len(job.status()["incidents"]) > incidents, process)
    wait_until(lambda: job.status()["incidents"][-1]["seconds"] is not None, process)
    seconds = time.monotonic() - began
    wait_until(lambda: last_step(job) >= before + NEW_STEPS, process)
    told: dict[str, Any] = job.status()["incidents"][-1]
    print(f"rank {rank}: from SIGKILL of its pod to the next new step {seconds:.2f} s, {told['stepsLost']} steps done again")
    return told


def losses(job: Job) -> list[tuple[int, float]]:
    whole = job.metrics.read_text().rpartition("\n")[0]
    return [(line["step"], line["loss"]) for line in map(json.loads, whole.splitlines())]


def test_a_standby_takes_the_place_of_a_pod_that_is_killed(tmp_path: Path) -> None:
    job, undisturbed = Job(tmp_path / "disturbed"), Job(tmp_path / "undisturbed")
    with running(job, "recovery.standby=1") as process:
        for rank, name in ((1, "tiny-s-1"), (0, "tiny-s-2")):
            assert wait_until_warm(job, process) == name
            told = kill(job, process, rank)
            assert (told["kind"], told["rank"]) == ("PodGone", rank)
            assert f"rank {rank} runs in the standby {name} now" in told["recovery"]
            assert job.status()["ranks"][rank]["pod"] == name
        steps = last_step(job)
        assert wait_until_warm(job, process) == "tiny-s-3"
        status = job.status()
        assert (status["restarts"], status["view"]["number"]) == (2, 3)
        assert status["promotions"] == [{"pod": "tiny-s-1", "rank": 1, "serial": 2}, {"pod": "tiny-s-2", "rank": 0, "serial": 2}]
    assert job.status()["standbys"] == []
    with running(undisturbed) as process:
        undisturbed.wait_for_step(steps, process)
    disturbed = losses(job)[:steps]
    assert [step for step, _ in disturbed] == list(range(1, steps + 1))
    assert disturbed == losses(undisturbed)[:steps]


@pytest.mark.slow
def test_a_standby_that_dies_is_replaced_and_training_does_not_notice(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with running(job, "recovery.standby=1") as process:
        first = wait_until_warm(job, process)
        os.killpg(job.pod(first), signal.SIGKILL)
        wait_until(lambda: standbys(job)[0]["pod"] != first, process)
        second = wait_until_warm(job, process)
        assert (first, second) == ("tiny-s-1", "tiny-s-2")
        status = job.status()
        assert (status["restarts"], status["incidents"], status["view"]["number"]) == (0, [], 1)


@pytest.mark.slow
def test_a_pod_that_is_killed_before_the_standby_is_warm_gets_one_of_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with running(job, "recovery.standby=1") as process:
        wait_until(lambda: (job.output / ".lmj" / "status.json").exists() and bool(job.status()["standbys"]), process)
        wait_until(lambda: standbys(job)[0]["state"] in ("Pending", "Warming"), process)
        told = kill(job, process, 1)
        assert "runs in tiny-r1-2 now" in told["recovery"]
        assert job.status()["promotions"] == []
