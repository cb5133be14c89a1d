"""Replicas that die, come back and change their number while the job trains change nothing of what it learns."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from faults import last_step
from jobs import DEADLINE, Job, wait_until
from moving import SETTINGS, assert_as_undisturbed, leave
from test_chaos import running

pytestmark = pytest.mark.e2e

SHARDS = 4


class Replicated(Job):
    """A job of one replica, until it is told otherwise."""

    def __init__(self, folder: Path, stages: int = 1) -> None:
        super().__init__(folder)
        document = yaml.safe_load(self.file.read_text())
        document["spec"]["pipeline"] = {"stages": stages, "microBatches": SHARDS}
        document["spec"]["dataParallel"] = {"shards": SHARDS}
        self.file.write_text(yaml.safe_dump(document))

    def scale(self, replicas: int) -> None:
        """``lmj scale``: returns when so many train."""
        command = [sys.executable, "-m", "lmj_operator.cli.main", "scale", str(self.output), "--replicas", str(replicas)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert done.returncode == 0, done.stderr

    def trains(self, replicas: int) -> bool:
        """Whether so many are in the view, and it runs."""
        status = self.status()
        return (status["phase"], status["replicas"]) == ("Running", replicas)


def stands_back(pid: int) -> bool:
    """Whether the session of ``pid`` takes only what others leave of the processor."""
    group = Path(f"/proc/{pid}/autogroup")
    return group.exists() and group.read_text().split()[-1:] not in ([], ["0"])


def go_on(job: Job, process: subprocess.Popen[str], steps: int = 10) -> None:
    step = last_step(job) + steps
    wait_until(lambda: last_step(job) >= step, process)


LONG = (4, 2, 3, 2)


@pytest.mark.parametrize(
    ("stages", "sizes"),
    [
        pytest.param(1, (3, 2), id="one stage"),
        pytest.param(1, LONG, id="one stage, up to four replicas", marks=pytest.mark.slow),
        pytest.param(2, LONG, id="two stages, up to four replicas", marks=pytest.mark.slow),
    ],
)
def test_replicas_that_come_and_go_change_nothing(tmp_path: Path, stages: int, sizes: tuple[int, ...]) -> None:
    job = Replicated(tmp_path / "scaled", stages)
    with running(job, 100_000, *SETTINGS[:-1]) as process:
        wait_until(lambda: last_step(job) > 3, process)
        for replicas in sizes:
            job.scale(replicas)
            go_on(job, process)
        before = job.status()
        assert (before["restarts"], before["stepsLost"]) == (0, 0)
        assert not any(stands_back(job.worker(rank)) for rank in range(2 * stages)), "those that joined do it no more"
        assert {incident["kind"] for incident in before["incidents"]} == {"Scaled"}
        for rank in (stages, 0):  # the second replica's worker, then the pod that leads
            pod = job.status()["ranks"][rank]["pod"]
            if rank:
                os.kill(job.worker(rank), signal.SIGKILL)
            else:
                os.killpg(job.pod(pod), signal.SIGKILL)
            go_on(job, process)
            wait_until(lambda: job.trains(2), process)
            go_on(job, process)
        job.scale(1)
        leave(job, process, last_step(job) + 10)
    status = job.status()
    assert (status["restarts"], status["stepsLost"]) == (2, 0)
    assert_as_undisturbed(job, lambda folder: Replicated(folder, stages), tmp_path / "undisturbed")
