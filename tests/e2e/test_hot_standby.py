"""With a replica, a pod that is lost costs no step."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import last_step
from jobs import Job, wait_until
from test_chaos import finish, running, steps_and_losses
from undisturbed_fixture import Undisturbed

pytestmark = pytest.mark.e2e

REPLICA = ("recovery.hotStandby=true", "checkpoint.everySteps=100000", "recovery.hangTimeoutSeconds=60")


def in_sync(job: Job) -> bool:
    followers = job.status()["followers"]
    return len(followers) == 2 and all(f["state"] == "InSync" for f in followers)


def agent_of(job: Job, pod: str) -> int:
    """Process group of the agent of ``pod``."""
    for pid in job.processes():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if words[1:4] == ["-m", "lmj_trainer", "agent"] and words[words.index("--pod") + 1] == pod:
            return pid
    raise AssertionError(f"{pod} has no agent")


def kill_pod(job: Job, process: subprocess.Popen[str], rank: int) -> None:
    """End all of the rank's pod at once, when its follower is in sync; returns when training has gone on."""
    wait_until(lambda: in_sync(job), process)
    before = job.status()
    followers = {f["rank"]: f["pod"] for f in before["followers"]}
    os.killpg(agent_of(job, before["ranks"][rank]["pod"]), signal.SIGKILL)
    wait_until(lambda: job.status()["view"]["number"] > before["view"]["number"], process)
    status = job.status()
    assert status["view"]["members"][rank]["pod"] == followers[rank]
    assert "checkpoint" not in status["view"]["reason"], status["view"]["reason"]
    step = last_step(job)
    wait_until(lambda: last_step(job) > step, process)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "steps"), [pytest.param((0, 1), 2000, id="short"), pytest.param((1, 0, 0, 1), 5000, id="long")]
)
def test_pods_are_lost_one_after_the_other_and_no_step_is(
    tmp_path: Path, undisturbed_of: Callable[[int], Undisturbed], ranks: tuple[int, ...], steps: int
) -> None:
    job, undisturbed = Job(tmp_path), undisturbed_of(steps).job
    with running(job, steps, *REPLICA) as process:
        wait_until(lambda: last_step(job) > 3, process)
        for rank in ranks:
            kill_pod(job, process, rank)
        finish(job, process)
    assert steps_and_losses(job) == steps_and_losses(undisturbed)
    weights = Path("model", "model.safetensors")
    assert (job.output / weights).read_bytes() == (undisturbed.output / weights).read_bytes()
    status = job.status()
    assert (status["restarts"], status["stepsLost"]) == (len(ranks), 0)
    for incident in status["incidents"]:
        print(incident["message"], "|", incident["recovery"], "|", incident["seconds"], "s")
        assert incident["stepsLost"] == 0
