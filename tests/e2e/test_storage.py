"""The real ``lmj run`` on storage that is full, gone or read-only: training goes on, and says so. Real file systems, so it takes root."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .jobs import DEADLINE, Job, wait_until
from .runs import Run, runs

__all__ = ["runs"]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting a file system takes root"),
]

STEPS = 400


class Disk:
    """A small file system, at ``path``."""

    def __init__(self, path: Path, size: str) -> None:
        path.mkdir(parents=True)
        self.path = path
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "lmj-test", str(path)], capture_output=True, text=True
        )
        if made.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")

    def fill(self) -> None:
        """Until there is no room."""
        try:
            with (self.path / "filler").open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError:
            return

    def free(self) -> None:
        (self.path / "filler").unlink()

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk", "8m")
    yield made
    subprocess.run(["umount", "-l", str(made.path)], check=True)


def steps(folder: Path) -> set[int]:
    # Looked at one by one: what is removed meanwhile is an error to a pattern that looks into folders.
    return {int(path.name.split("-")[1]) for path in folder.glob("step-*") if (path / "manifest.json").exists()}


def test_a_full_disk_costs_checkpoints_and_no_training(tmp_path: Path, disk: Disk, runs: list[Run]) -> None:
    job = Job(tmp_path / "job")
    run = Run(job, f"checkpoint.path={disk.path}", "training.maxSteps=1200")
    runs.append(run)
    job.wait_for_step(50, run.process)
    wait_until(lambda: bool(steps(disk.path)), run.process)
    assert run.stale() is None
    disk.fill()
    stale = run.wait_for_stale("True")
    assert stale["reason"] == "WriteFailed"
    assert "No space left on device" in stale["message"]
    assert "the newest is of step " in stale["message"]
    step = max(job.losses())
    job.wait_for_step(step + 60, run.process)
    assert len([p for p in disk.path.iterdir() if p.name.startswith("step-")]) <= 5, "what failed leaves nothing behind"
    disk.free()
    mended = run.wait_for_stale("False")
    assert mended["reason"] == "Written"
    said = run.finish()
    assert "could not write: [Errno 28] No space left on device" in said
    assert "; training goes on" in said
    status = job.status()
    assert (status["phase"], status["restarts"], status["stepsLost"]) == ("Succeeded", 0, 0)
    assert list(job.losses()) == list(range(1, 1201))
    assert 1200 in steps(disk.path)


@pytest.mark.slow
def test_the_last_checkpoint_waits_for_room(tmp_path: Path, disk: Disk, runs: list[Run]) -> None:
    """Training is done, and its result is in memory alone."""
    job = Job(tmp_path / "job")
    run = Run(job, f"checkpoint.path={disk.path}", f"training.maxSteps={STEPS}", "checkpoint.everySteps=1000")
    runs.append(run)
    job.wait_for_step(20, run.process)
    disk.fill()
    job.wait_for_step(STEPS, run.process)
    wait_until(lambda: len([line for line in run.lines if f"checkpoint of step {STEPS} failed" in line]) >= 2, run.process)
    status = job.status()
    assert status["phase"] == "Running"
    assert not (job.output / "model").exists()
    disk.free()
    run.finish()
    status = job.status()
    assert (status["phase"], status["restarts"]) == ("Succeeded", 0)
    assert (job.output / "model" / "config.json").exists()
    assert STEPS in steps(disk.path)


@pytest.mark.slow
def test_the_job_fails_with_the_reason_when_there_never_is_room(tmp_path: Path, disk: Disk, runs: list[Run]) -> None:
    job = Job(tmp_path / "job")
    sets = (f"checkpoint.path={disk.path}", "training.maxSteps=100", "checkpoint.everySteps=1000")
    run = Run(job, *sets, "checkpoint.retrySeconds=3")
    runs.append(run)
    job.wait_for_step(20, run.process)
    disk.fill()
    assert run.process.wait(timeout=DEADLINE) == 2
    status = job.status()
    assert status["phase"] == "Failed"
    assert status["message"].startswith(
        "the last checkpoint, of step 100, could not be written within 3 s (checkpoint.retrySeconds): "
    )
    assert "No space left on device" in status["message"]
    assert status["restarts"] == 0


@pytest.mark.slow
def test_an_output_folder_that_is_full_stops_nothing(tmp_path: Path, disk: Disk, runs: list[Run]) -> None:
    """Metrics, status, logs and checkpoints: all of it is on the disk that is full."""
    job = Job(tmp_path / "job")
    job.output = disk.path / "out"
    job.metrics = job.output / "metrics.jsonl"
    run = Run(job, f"output.path={job.output}", "training.maxSteps=1200")
    runs.append(run)
    job.wait_for_step(50, run.process)
    disk.fill()
    wait_until(lambda: any("metrics cannot be written" in line for line in run.lines), run.process)
    wait_until(lambda: any("checkpoint of step" in line and "failed" in line for line in run.lines), run.process)
    disk.free()
    said = run.finish()
    assert "status.json cannot be written: No space left on device; training goes on" in said
    status = job.status()
    assert (status["phase"], status["restarts"]) == ("Succeeded", 0)
    assert list(job.losses()) == list(range(1, 1201)), "what could not be written then was written later"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refused", "full"])
def test_workers_are_killed_while_the_output_cannot_be_written(tmp_path: Path, disk: Disk, runs: list[Run], how: str) -> None:
    """Another view begins, then another process of rank 0: what the first could not record, rank 1 knows too."""
    job = Job(tmp_path / "job")
    job.output = disk.path / "out"
    job.metrics = job.output / "metrics.jsonl"
    run = Run(job, f"output.path={job.output}", "training.maxSteps=1200")
    runs.append(run)
    job.wait_for_step(50, run.process)
    aside = job.output / "aside"
    if how == "full":
        disk.fill()
    else:
        job.metrics.rename(aside)
        job.metrics.mkdir()

    def recovered() -> int:
        return sum("recovered in" in line for line in run.lines)

    # Of rank 1 first: rank 0 lives on, and begins another view. What is not written when rank 0 dies only rank 1 knows.
    for count, rank in enumerate((1, 0), 1):
        os.kill(job.worker(rank), signal.SIGKILL)
        wait_until(lambda count=count: recovered() == count, run.process)  # type: ignore[misc] # mypy knows no default of a lambda
        if count == 1:
            wait_until(lambda: any("metrics cannot be written" in line for line in run.lines), run.process)
    if how == "full":
        disk.free()
    else:
        job.metrics.rmdir()
        aside.rename(job.metrics)
    run.finish()
    status = job.status()
    assert (status["phase"], status["restarts"], status["stepsLost"]) == ("Succeeded", 2, 0)
    assert list(job.losses()) == list(range(1, 1201))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gone", "read-only", "replaced"])
def test_storage_that_goes_away(tmp_path: Path, disk: Disk, runs: list[Run], how: str) -> None:
    folder = disk.path / "checkpoints"
    job = Job(tmp_path / "job")
    run = Run(job, f"checkpoint.path={folder}", "training.maxSteps=1200")
    runs.append(run)
    job.wait_for_step(50, run.process)
    wait_until(lambda: bool(steps(folder)), run.process)
    if how == "read-only":
        disk.remount("ro")
    else:
        folder.rename(disk.path / "elsewhere")
    if how == "replaced":
        # Another empty volume in its place: nothing fails, and what was there is not missed.
        folder.mkdir()
    elif how == "gone":
        folder.write_text("not a folder")
    if how != "replaced":
        stale = run.wait_for_stale("True")
        said = ("Read-only file system",) if how == "read-only" else ("File exists", "Not a directory")
        assert any(text in stale["message"] for text in said)
        job.wait_for_step(max(job.losses()) + 60, run.process)
    if how == "read-only":
        disk.remount("rw")
    elif how == "gone":
        folder.unlink()
    run.finish()
    status = job.status()
    assert (status["phase"], status["restarts"]) == ("Succeeded", 0)
    assert 1200 in steps(folder)
    assert list(job.losses()) == list(range(1, 1201))
