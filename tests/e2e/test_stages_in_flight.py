"""The layers of a job are cut anew while it trains: into more stages and into fewer, with pods killed, and nothing of what it learns changes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from faults import last_step
from jobs import DEADLINE, Job, wait_until
from moving import SETTINGS, assert_as_undisturbed, leave, stopped, worker_of
from test_chaos import running

from lmj_api.cut import Cut

pytestmark = pytest.mark.e2e

LAYERS = 3


class Staged(Job):
    """A job of three layers, in ``stages`` until it is told otherwise."""

    def __init__(self, folder: Path, stages: int = 1, replicas: int = 1, *, lora: bool = False) -> None:
        super().__init__(folder)
        document = yaml.safe_load(self.file.read_text())
        document["spec"]["pipeline"] = {"stages": stages, "microBatches": 4}
        document["spec"]["dataParallel"] = {"shards": 4, "replicas": replicas}
        document["spec"]["model"]["scratch"]["layers"] = LAYERS
        if lora:
            document["spec"]["model"]["lora"] = {}
        self.file.write_text(yaml.safe_dump(document))

    @contextmanager
    def cutting(self, stages: int) -> Iterator[subprocess.Popen[str]]:
        """``lmj scale --stages``, until the end of the block; it has ended well then."""
        command = [sys.executable, "-m", "lmj_operator.cli.main", "scale", str(self.output), "--stages", str(stages)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            yield process
            out, err = process.communicate(timeout=DEADLINE)
            assert process.returncode == 0, err
            assert out.strip() == f"{stages} stages train"
        finally:
            process.kill()
            process.communicate()

    def next_pods(self) -> list[dict[str, Any]]:
        """Those of the next cut."""
        recut = self.status()["recut"]
        return recut["followers"] if recut is not None else []

    def trains_in(self, stages: int) -> bool:
        status = self.status()
        return (status["phase"], status["stages"], status["recut"]) == ("Running", stages, None)


def cut(job: Staged, process: subprocess.Popen[str], stages: int, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Have the layers in ``stages``. ``meanwhile`` is done once the pods of the next cut have their workers."""
    before = job.status()
    with job.cutting(stages):
        # While a process imports what it needs, hundreds of steps would be made, and made again by the run that this one is compared with.
        with stopped(*(worker_of(job, rank["pod"]) for rank in before["ranks"])):
            wait_until(lambda: born(job), process)
        meanwhile()
    wait_until(lambda: job.trains_in(stages), process)
    after = job.status()
    assert after["view"]["cut"] == {"stages": stages, "layers": None}
    told = [i for i in after["incidents"] if i["kind"] == "Recut"][-1]
    step = told["step"]
    assert told["message"] == f"recut from {Cut(stages=before['stages'])} to {Cut(stages=stages)} at step {step}"
    assert (after["stepsLost"], after["restarts"]) == (before["stepsLost"], before["restarts"])
    go_on(job, process)
    wait_until(lambda: pods(job) == {rank["pod"] for rank in job.status()["ranks"]}, process)


def born(job: Staged) -> bool:
    """Whether all pods of the next cut have their workers."""
    found = job.next_pods()
    return bool(found) and all(has_worker(job, pod["pod"]) for pod in found)


def has_worker(job: Job, pod: str) -> bool:
    try:
        worker_of(job, pod)
    except AssertionError:
        return False
    return True


def pods(job: Job) -> set[str]:
    """Names of those whose agents live."""
    return {words[words.index("--pod") + 1] for _, words in job._trainers("agent")}


def go_on(job: Job, process: subprocess.Popen[str], steps: int = 10) -> None:
    step = last_step(job) + steps
    wait_until(lambda: last_step(job) >= step, process)


@pytest.mark.slow
def test_one_two_three_and_two_stages_again(tmp_path: Path) -> None:
    job = Staged(tmp_path / "cut")
    with running(job, 100_000, *SETTINGS) as process:
        wait_until(lambda: last_step(job) > 3, process)

        def a_pod_dies() -> None:
            """While it follows: another is made, and the one beside it goes on following."""
            wait_until(lambda: any(pod["state"] == "Copying" for pod in job.next_pods()), process)
            victim = next(pod["pod"] for pod in reversed(job.next_pods()) if pod["state"] == "Copying")
            os.killpg(job.pod(victim), signal.SIGKILL)
            wait_until(lambda: all(pod["pod"] != victim for pod in job.next_pods()), process)

        cut(job, process, 2, a_pod_dies)
        cut(job, process, 3)
        cut(job, process, 2)
        os.kill(job.worker(1), signal.SIGKILL)  # the usual rules hold in the new cut
        go_on(job, process)
        leave(job, process, last_step(job) + 10)
    status = job.status()
    assert (status["restarts"], status["stepsLost"]) == (1, 0)
    assert [i["kind"] for i in status["incidents"]] == ["Recut", "Recut", "Recut", "WorkerExited"]
    assert_as_undisturbed(job, lambda folder: Staged(folder, 2), tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_replicas_are_cut_as_one(tmp_path: Path, lora: bool) -> None:
    job = Staged(tmp_path / "cut", 1, 2, lora=lora)
    with running(job, 100_000, *SETTINGS[:-1]) as process:
        wait_until(lambda: last_step(job) > 3, process)
        cut(job, process, 2)
        assert job.status()["replicas"] == 2
        leave(job, process, last_step(job) + 10)
    assert (job.status()["restarts"], job.status()["stepsLost"]) == (0, 0)
    assert_as_undisturbed(job, lambda folder: Staged(folder, 2, lora=lora), tmp_path / "undisturbed")


@pytest.mark.slow
def test_more_stages_than_layers_change_nothing_and_are_refused_in_a_line(tmp_path: Path) -> None:
    job = Staged(tmp_path / "cut")
    with running(job, 100_000, *SETTINGS[:-1]) as process:
        wait_until(lambda: last_step(job) > 3, process)
        command = [sys.executable, "-m", "lmj_operator.cli.main", "scale", str(job.output), "--stages", str(LAYERS + 1)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert done.returncode != 0
        assert "the layers stay in 1 stage:" in done.stderr
        assert f"4 is more than the model's {LAYERS} layers" in done.stderr
        go_on(job, process)
        wait_until(lambda: pods(job) == {job.status()["ranks"][0]["pod"]}, process)
        leave(job, process, last_step(job) + 10)
    assert (job.status()["restarts"], job.status()["stepsLost"], job.status()["incidents"]) == (0, 0, [])
