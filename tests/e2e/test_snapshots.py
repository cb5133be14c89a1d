"""With snapshots in memory, a pod that is lost costs the steps since the newest, and no disk is read."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import last_step
from jobs import Job, wait_until
from test_chaos import finish, running, steps_and_losses
from undisturbed_fixture import STEPS, Undisturbed

pytestmark = pytest.mark.e2e

EVERY = 10
SNAPSHOTS = (f"recovery.memorySnapshot.everySteps={EVERY}", "checkpoint.everySteps=100000", "recovery.hangTimeoutSeconds=60")
BOUND = 2 * EVERY
"""Steps that a lost pod costs at most where a snapshot is sent within an interval."""


def lose_pod(job: Job, process: subprocess.Popen[str], rank: int) -> None:
    """End all of the rank's pod at once; returns when training is further than it was, and by a snapshot at least."""
    before, at = job.status(), last_step(job)
    os.killpg(job.agent(rank), signal.SIGKILL)
    wait_until(lambda: job.status()["view"]["number"] > before["view"]["number"], process)
    view = job.status()["view"]
    assert view["resume"] == {**view["resume"], "snapshot": True, "checkpoint": None, "fetched": [rank]}, view
    reason = f"the snapshot of step {view['resume']['step']} in memory (rank {rank}'s comes from rank {1 - rank})"
    assert f"goes back to {reason} because rank {rank} has nothing in memory" in view["reason"]
    wait_until(lambda: last_step(job) > at + BOUND, process)


@pytest.mark.parametrize(
    ("ranks", "steps"),
    [pytest.param((1, 0), STEPS, id="short"), pytest.param((1, 0, 0, 1, 1, 0), 4000, id="long", marks=pytest.mark.slow)],
)
def test_pods_are_lost_and_training_goes_back_to_the_newest_snapshot(
    tmp_path: Path, undisturbed_of: Callable[[int], Undisturbed], ranks: tuple[int, ...], steps: int
) -> None:
    job, undisturbed = Job(tmp_path), undisturbed_of(steps).job
    with running(job, steps, *SNAPSHOTS) as process:
        wait_until(lambda: last_step(job) > 3 * EVERY, process)
        # Which state is where is told while it is so.
        wait_until(lambda: any(copy["memory"] == copy["neighbours"] == 2 for copy in job.status()["copies"]), process)
        for rank in ranks:
            lose_pod(job, process, rank)
        finish(job, process)
    assert steps_and_losses(job) == steps_and_losses(undisturbed)
    weights = Path("model", "model.safetensors")
    assert (job.output / weights).read_bytes() == (undisturbed.output / weights).read_bytes()
    status = job.status()
    assert status["restarts"] == len(ranks)
    for incident in status["incidents"]:
        print(incident["message"], "|", incident["recovery"], "|", incident["stepsLost"], "steps,", incident["seconds"], "s")
        assert 0 <= incident["stepsLost"] <= BOUND
        assert "the snapshot of step" in incident["recovery"]
