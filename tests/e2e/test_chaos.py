"""A job that is hit again and again ends with the numbers of one that was left alone."""

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults import NEW_STEPS, Kind, go_through, last_step, plan
from jobs import DEADLINE, Job, wait_until
from undisturbed_fixture import STEPS, Undisturbed

pytestmark = pytest.mark.e2e

SEED = int(os.environ.get("LMJ_CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
SHORT = {Kind.WORKER: 5, Kind.BOTH: 2, Kind.TWICE: 3, Kind.WARM: 1, Kind.STOP: 3, Kind.POD: 1}
LONG = {Kind.WORKER: 46, Kind.BOTH: 12, Kind.TWICE: 18, Kind.WARM: 5, Kind.STOP: 12, Kind.POD: 7}
COSTS = 2 * 20
"""Steps that a pod costs at most: twice those between checkpoints, for the newest may not be durable yet."""


@contextmanager
def running(job: Job, steps: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The run of ``job``, with ``more`` settings; nothing is left of it when the test fails."""
    sets = [f"training.maxSteps={steps}", "recovery.maxRestarts=1000", "recovery.backoffSeconds=0.1", *more]
    process = job.start("--plain", *(word for text in sets for word in ("--set", text)))
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        wait_until(lambda: not job.processes(), seconds=10)


def finish(job: Job, process: subprocess.Popen[str]) -> str:
    """What the run said; it succeeded."""
    out, err = job.end(process)
    assert process.returncode == 0, out + err
    assert job.status()["phase"] == "Succeeded"
    return out


def steps_and_losses(job: Job) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in job.metrics.read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


@pytest.mark.parametrize(
    ("counts", "steps"), [pytest.param(SHORT, STEPS, id="short"), pytest.param(LONG, 1800, id="long", marks=pytest.mark.slow)]
)
def test_faults_change_nothing(
    tmp_path: Path, undisturbed_of: Callable[[int], Undisturbed], counts: dict[Kind, int], steps: int
) -> None:
    print(f"LMJ_CHAOS_SEED={SEED}")
    job, undisturbed = Job(tmp_path), undisturbed_of(steps).job
    with running(job, steps) as process:
        go_through(job, process, plan(SEED, counts), steps)
        said = finish(job, process)

    losses = steps_and_losses(job)
    assert [step for step, _ in losses] == list(range(1, steps + 1))
    assert losses == steps_and_losses(undisturbed)
    weights = Path("model", "model.safetensors")
    assert (job.output / weights).read_bytes() == (undisturbed.output / weights).read_bytes()
    status = job.status()
    assert status["stepsLost"] <= counts[Kind.POD] * COSTS, said
    assert status["restarts"] >= counts[Kind.WORKER] + 2 * counts[Kind.BOTH] + counts[Kind.TWICE] + counts[Kind.POD]


@dataclass(frozen=True)
class Size:
    """What a process holds."""

    threads: int
    files: int
    memory: int
    """Resident bytes, without pages of files."""

    @classmethod
    def of(cls, pid: int) -> "Size":
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        kilobytes = int(status["RssAnon"].split()[0]) + int(status["RssShmem"].split()[0])
        return cls(int(status["Threads"]), len(os.listdir(f"/proc/{pid}/fd")), kilobytes * 1024)

    def within(self, limit: "Size", memory: int) -> bool:
        return self.threads <= limit.threads and self.files <= limit.files and self.memory <= limit.memory + memory


FEW, MANY = 10, 60
SLACK = 8 << 20
"""Bytes that a process may grow by in ``MANY - FEW`` view changes: logs of events fill up, allocators settle. It was 1 MB."""


@pytest.mark.slow
def test_what_survives_does_not_grow(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with running(job, 100_000) as process:
        wait_until(lambda: last_step(job) >= 3, process)
        survivors = {
            "worker of rank 0": job.worker(0),
            "agent of rank 0": job.agent(0),
            "agent of rank 1": job.agent(1),
            "fork server of rank 1": job.fork_server(1),
            "lmj run": process.pid,
        }
        few: dict[str, Size] = {}
        for number in range(1, MANY + 1):
            os.kill(job.worker(1), signal.SIGKILL)
            wait_until(lambda view=number + 1: job.status()["view"]["number"] == view, process)
            step = last_step(job)
            wait_until(lambda step=step: last_step(job) >= step + NEW_STEPS, process)
            if number == FEW:
                few = {name: Size.of(pid) for name, pid in survivors.items()}
        status = job.status()
        assert (status["restarts"], status["stepsLost"]) == (MANY, 0)
        assert [job.worker(0), job.agent(0), job.agent(1), job.fork_server(1)] == list(survivors.values())[:-1]
        for name, pid in survivors.items():
            print(f"{name}: {few[name]} after {FEW} view changes, {Size.of(pid)} after {MANY}")
            # A link or a call that is just being closed counts a moment longer.
            wait_until(lambda name=name, pid=pid: Size.of(pid).within(few[name], SLACK), process, seconds=10)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE)
        assert process.returncode == 130
