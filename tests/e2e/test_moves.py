"""Ranks that move while the job trains, again and again, change nothing of what it learns."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faults import last_step
from jobs import DEADLINE, Job, wait_until
from test_chaos import running, steps_and_losses
from test_replica import agent_of

pytestmark = pytest.mark.e2e

SEED = int(os.environ.get("LMJ_MOVES_SEED", random.SystemRandom().randrange(1 << 32)))
SPARSE = "checkpoint.everySteps=100000"


def migrate(job: Job, *ranks: int) -> dict[str, Any]:
    """What ``lmj migrate`` says of the move."""
    options = [word for rank in ranks for word in ("--rank", str(rank))]
    command = [sys.executable, "-m", "lmj_operator.cli.main", "migrate", str(job.output), *options, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def leave(job: Job, process: subprocess.Popen[str], step: int) -> None:
    """End the run once it is past ``step``."""
    wait_until(lambda: last_step(job) > step, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE)


@pytest.mark.parametrize("moves", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_moves_change_nothing(tmp_path: Path, moves: int) -> None:
    print(f"LMJ_MOVES_SEED={SEED}")
    source = random.Random(SEED)
    wanted = [(1,), (0,), (0, 1)] + [source.choice([(0,), (1,), (0, 1)]) for _ in range(moves - 3)]
    job, undisturbed = Job(tmp_path / "moved"), Job(tmp_path / "undisturbed")
    with running(job, 100_000, SPARSE) as process:
        wait_until(lambda: last_step(job) > 3, process)
        first = [job.worker(rank) for rank in (0, 1)]
        for ranks in wanted:
            told = migrate(job, *ranks)
            assert told["migrations"] == len(ranks)
            assert {i["rank"] for i in told["incidents"]} == set(ranks)
            assert all(i["kind"] == "Moved" and i["stepsLost"] == 0 for i in told["incidents"])
            print(ranks, [f"{i['seconds']:.3f} s" for i in told["incidents"]])
        # No process of the first view is left.
        assert not {job.worker(rank) for rank in (0, 1)} & set(first)
        leave(job, process, last_step(job) + 20)
    status = job.status()
    assert (status["migrations"], status["stepsLost"], status["restarts"]) == (sum(map(len, wanted)), 0, 0)
    losses = steps_and_losses(job)
    with running(undisturbed, 100_000, SPARSE) as process:
        leave(undisturbed, process, len(losses))
    # Each loss depends on all weights of the step before.
    assert losses == steps_and_losses(undisturbed)[: len(losses)]
    assert [step for step, _ in losses] == list(range(1, len(losses) + 1))


def test_moves_through_a_checkpoint_lose_no_step_and_are_no_restart(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with running(job, 100_000, SPARSE, "migration.strategy=Checkpoint") as process:
        wait_until(lambda: last_step(job) > 3, process)
        first = [job.worker(rank) for rank in (0, 1)]
        for ranks in ((1,), (0, 1)):
            told = migrate(job, *ranks)
            assert [(i["kind"], i["stepsLost"]) for i in told["incidents"]] == [("Moved", 0)] * len(ranks)
            print(ranks, [f"{i['seconds']:.3f} s" for i in told["incidents"]])
        assert not {job.worker(rank) for rank in (0, 1)} & set(first)
        leave(job, process, last_step(job) + 20)
    status = job.status()
    assert (status["migrations"], status["stepsLost"], status["restarts"]) == (3, 0, 0)
    steps = [step for step, _ in steps_and_losses(job)]
    assert steps == list(range(1, len(steps) + 1))


def follower(job: Job) -> dict[str, Any] | None:
    followers: list[dict[str, Any]] = job.status()["followers"]
    return followers[0] if followers else None


@pytest.mark.parametrize("victim", ["target's worker", "target's pod", "source's worker", "other's worker"])
def test_a_death_while_a_rank_moves_costs_nothing(tmp_path: Path, victim: str) -> None:
    job = Job(tmp_path)
    with running(job, 100_000, SPARSE) as process:
        wait_until(lambda: last_step(job) > 3, process)
        options = ["--rank", "1", "-o", "json"]
        command = [sys.executable, "-m", "lmj_operator.cli.main", "migrate", str(job.output), *options]
        moving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: (follower(job) or {}).get("state") in ("Starting", "Copying", "Level"), process)
            target = follower(job)
            if victim == "target's pod":
                assert target is not None
                os.killpg(agent_of(job, target["pod"]), signal.SIGKILL)
            elif victim == "target's worker":
                assert target is not None
                kill_worker_of(job, process, target["pod"])
            else:
                os.kill(job.worker(1 if victim.startswith("source") else 0), signal.SIGKILL)
            assert json.loads(moving.communicate(timeout=DEADLINE)[0])["migrations"] == 1
        finally:
            moving.kill()
        leave(job, process, last_step(job) + 20)
    status = job.status()
    assert (status["migrations"], status["stepsLost"]) == (1, 0)
    assert status["restarts"] == (0 if victim.startswith("target") else 1)
    steps = [step for step, _ in steps_and_losses(job)]
    assert steps == list(range(1, len(steps) + 1))


def kill_worker_of(job: Job, process: subprocess.Popen[str], pod: str) -> None:
    """End the worker of ``pod``, once it is born."""

    def found() -> int | None:
        for pid in job.processes():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
            except OSError:
                continue  # it ended meanwhile
            if words[1:4] == ["-m", "lmj_trainer", "worker"] and words[words.index("--pod") + 1] == pod:
                return pid
        return None

    wait_until(lambda: found() is not None, process)
    pid = found()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
