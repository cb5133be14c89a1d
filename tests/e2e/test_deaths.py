"""Deaths at awkward moments: in the middle of a checkpoint, and of all pods at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.on_disk import survey

from .jobs import DEADLINE, Job
from .undisturbed_fixture import STEPS as DEFAULT_STEPS
from .undisturbed_fixture import Undisturbed

pytestmark = pytest.mark.e2e

STEPS = 120
LARGE = ("--set", "model.scratch.hiddenSize=256", "--set", "model.scratch.intermediateSize=1024")
"""A model whose checkpoint takes a while to write: a death in the middle of it can be made."""


@pytest.fixture(scope="module")
def losses_of_large(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Those of a run that was left alone."""
    job = Job(tmp_path_factory.mktemp("large"))
    done = job.run("--set", f"training.maxSteps={STEPS}", *LARGE)
    assert done.returncode == 0, done.stdout + done.stderr
    return job.losses()


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_dies_within_the_write_of_a_checkpoint(losses_of_large: dict[int, float], tmp_path: Path, rank: int) -> None:
    job = Job(tmp_path)
    process = job.start(
        "--set", f"training.maxSteps={STEPS}", "--set", "checkpoint.everySteps=3", "--set", "checkpoint.keep=100", *LARGE
    )
    job.wait_for_step(10, process)
    victim, deadline = job.worker(rank), time.monotonic() + DEADLINE
    # None is removed while it is looked into, for all are kept. No pause: the file has its name beside the real one while it is
    # written, some hundredths of a second.
    while not list((job.output / "checkpoints").glob(f"step-*/.rank-{rank}.*.partial")):
        assert time.monotonic() < deadline
        assert process.poll() is None
    os.kill(victim, signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert job.losses() == losses_of_large
    status = job.status()
    assert (status["restarts"], status["stepsLost"]) == (1, 0)
    found = survey(job.output / "checkpoints", None, everything=True)
    assert found[0].info.step == STEPS
    assert {f.info.problem for f in found} <= {None, "half-written (no manifest)"}, "none claims to be what it is not"


def test_all_pods_die_at_once(tmp_path: Path, undisturbed_of: Callable[[int], Undisturbed]) -> None:
    losses = undisturbed_of(DEFAULT_STEPS).job.losses()
    job = Job(tmp_path)
    process = job.start("--set", f"training.maxSteps={DEFAULT_STEPS}")
    job.wait_for_step(50, process)
    for agent in [job.agent(0), job.agent(1)]:
        os.killpg(agent, signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert job.losses() == losses
    status = job.status()
    assert status["restarts"] == 2
    assert {i["kind"] for i in status["incidents"]} == {"PodGone"}
    assert status["serials"] == {"0": 2, "1": 2}
    assert status["stepsLost"] <= 2 * 20, "what was since the newest checkpoint"
