"""The real ``lmj run`` with real processes: it trains, survives, resumes, and says what is wrong."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .jobs import DEADLINE, Job, wait_until
from .undisturbed_fixture import STEPS, Undisturbed

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def undisturbed(undisturbed_of: Callable[[int], Undisturbed]) -> Job:
    """A finished run."""
    job, result = undisturbed_of(STEPS).job, undisturbed_of(STEPS).result
    assert result["type"] == "result"
    assert result["phase"] == "Succeeded"
    assert result["steps"] == STEPS
    assert result["testAccuracy"] > 0.9
    assert (Path(result["model"]) / "config.json").exists()
    assert not job.processes()
    return job


def test_a_finished_job_is_not_trained_again(undisturbed: Job) -> None:
    before = undisturbed.status()
    again = undisturbed.run()
    assert again.returncode == 0
    assert "finished already, nothing to do" in again.stdout
    assert undisturbed.status() == before


def test_a_run_s_keys_are_its_owner_s(undisturbed: Job) -> None:
    assert (undisturbed.output / ".lmj").stat().st_mode & 0o777 == 0o700


def test_status_tells_what_was_done(undisturbed: Job) -> None:
    command = [sys.executable, "-m", "lmj_operator.cli.main", "status"]
    text = subprocess.run([*command, str(undisturbed.output)], capture_output=True, text=True, timeout=60, check=True).stdout
    assert text.startswith("Succeeded: trained to the end")
    told = subprocess.run([*command, str(undisturbed.file), "-o", "json"], capture_output=True, text=True, timeout=60, check=True)
    value = json.loads(told.stdout)
    assert value["running"] is False
    assert [rank["rank"] for rank in value["status"]["ranks"]] == [0, 1]


def test_interrupted_and_resumed_equals_undisturbed(undisturbed: Job, tmp_path: Path) -> None:
    job = Job(tmp_path)
    process = job.start()
    job.wait_for_step(50, process)
    run = job.identity()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, out + err
    assert "the same command resumes" in out
    wait_until(lambda: not job.processes(), seconds=5)
    status = job.status()
    assert status["phase"] == "Suspended"
    assert status["checkpoint"]["step"] == status["progress"]["step"], "nothing was lost"

    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.losses() == undisturbed.losses()
    assert job.status()["stepsLost"] == 0
    assert job.identity() == run != undisturbed.identity()


@pytest.mark.slow
def test_told_to_end_twice_loses_no_step(undisturbed: Job, tmp_path: Path) -> None:
    """As ``timeout`` does it, which signals the process and then the group that it is in."""
    job = Job(tmp_path)
    process = job.start()
    job.wait_for_step(50, process)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.02)  # as far apart as they come
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, out + err
    wait_until(lambda: not job.processes(), seconds=5)
    status = job.status()
    assert status["phase"] == "Suspended"
    assert status["checkpoint"]["step"] == max(job.losses()) >= 50, "nothing was lost"


@pytest.mark.slow
def test_interrupted_in_a_recovery_loses_no_step(undisturbed: Job, tmp_path: Path) -> None:
    job = Job(tmp_path)
    process = job.start()
    job.wait_for_step(50, process)
    os.kill(job.worker(1), signal.SIGKILL)
    wait_until(lambda: job.status()["restarts"] == 1, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, out + err
    wait_until(lambda: not job.processes(), seconds=5)
    status = job.status()
    assert status["phase"] == "Suspended"
    assert status["checkpoint"]["step"] == max(job.losses()) > 50, "the worker came back for a last checkpoint"

    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.losses() == undisturbed.losses()
    assert job.status()["stepsLost"] == 0


def test_killed_outright_leaves_no_process_and_resumes(undisturbed: Job, tmp_path: Path) -> None:
    job = Job(tmp_path)
    process = job.start()
    job.wait_for_step(50, process)
    second = job.run()
    assert second.returncode == 1
    assert f"another lmj run (process {process.pid})" in second.stderr
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not job.processes(), seconds=10)

    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.losses() == undisturbed.losses()
    assert "was killed, and all pods with it" in done.stdout or job.status()["incidents"]


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_worker_comes_back(undisturbed: Job, tmp_path: Path, rank: int) -> None:
    job = Job(tmp_path)
    process = job.start()
    job.wait_for_step(50, process)
    other = job.worker(1 - rank)
    os.kill(job.worker(rank), signal.SIGKILL)
    wait_until(lambda: job.status()["view"]["number"] == 2, process)
    assert job.worker(1 - rank) == other, "the survivor kept its process"
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert job.losses() == undisturbed.losses()
    status = job.status()
    assert status["restarts"] == 1
    assert status["incidents"][0]["kind"] == "WorkerExited"
    assert "SIGKILL" in status["incidents"][0]["message"]
    assert status["incidents"][0]["stepsLost"] == status["stepsLost"] == 0
    assert "which all have in memory" in status["view"]["reason"]


@pytest.mark.slow
def test_a_worker_that_nobody_can_connect_to_is_replaced(undisturbed: Job, tmp_path: Path) -> None:
    """Its listener ends when a connection does before the two have greeted each other, as one of a peer that is killed just then."""
    job = Job(tmp_path)
    process = job.start()
    job.wait_for_step(50, process)
    host, _, port = job.status()["view"]["members"][0]["address"].removeprefix("uv://").rpartition(":")
    socket.create_connection((host, int(port)), DEADLINE).close()
    wait_until(lambda: refused(host, int(port)), process)
    os.kill(job.worker(1), signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert job.losses() == undisturbed.losses()
    status = job.status()
    assert (status["restarts"], status["stepsLost"]) == (1, 0), "only the death is counted"
    assert any("nobody can connect to this worker any more" in i["message"] for i in status["incidents"])


def refused(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), DEADLINE).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_hung_worker_is_replaced_alone(undisturbed: Job, tmp_path: Path) -> None:
    job = Job(tmp_path)
    process = job.start("--set", "spec.recovery.hangTimeoutSeconds=12")
    job.wait_for_step(50, process)
    other = job.worker(0)
    os.kill(job.worker(1), signal.SIGSTOP)
    wait_until(lambda: job.status()["view"]["number"] == 2, process)
    assert job.worker(0) == other, "the survivor kept its process"
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert job.losses() == undisturbed.losses()
    status = job.status()
    assert [i["rank"] for i in status["incidents"] if i["kind"] == "Hang"] == [1]
    assert status["stepsLost"] == 0


BAD = {
    "unknown-field": (["spec.training.epoch=1"], "epochs"),
    "missing-column": (['spec.dataset.text=["txt"]'], "txt"),
    "label-outside": (['spec.model.labels=["negative","neutral"]'], "positive"),
    "stages": (["spec.pipeline.stages=3"], "stages"),
    "too-long": (["spec.dataset.maxLength=64"], "maxLength"),
    "batch": (["spec.pipeline.microBatches=3"], "microBatches"),
    "unknown-model": (["spec.model.scratch=null", "spec.model.source=/nowhere/at/all"], "/nowhere/at/all"),
    "no-data": (["spec.dataset.source=none.csv"], "none.csv"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_starts_nothing(case: str, tmp_path: Path) -> None:
    sets, names = BAD[case]
    job = Job(tmp_path)
    done = job.run(*(part for value in sets for part in ("--set", value)))
    _one_line(done, names, job)


def test_empty_data_is_one_line(tmp_path: Path) -> None:
    job = Job(tmp_path)
    (job.folder / "data.csv").write_text("text,label\n")
    _one_line(job.run(), "data.csv", job)


def test_unwritable_output_is_one_line(tmp_path: Path) -> None:
    job = Job(tmp_path)
    (tmp_path / "file").write_text("")
    _one_line(job.run("--set", f"spec.output.path={tmp_path / 'file' / 'out'}"), "file", job)


def test_yaml_that_is_none_is_one_line(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.file.write_text("metadata: [\n")
    _one_line(job.run(), "line 2", job)


def _one_line(done: subprocess.CompletedProcess[str], names: str, job: Job) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert names in done.stderr
    assert not (job.output / "logs").exists()
