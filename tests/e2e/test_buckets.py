"""The real ``lmj run`` with its checkpoints on servers of storage: real ones, of S3 and of Azure Blob Storage, and the tests' own."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from bucket_fixture import lead
from s3_server import S3Server, serving
from storage_server import StorageServer

from lmj_trainer.checkpoint.scan import survey
from lmj_trainer.store.registry import open_place

from .jobs import Job, wait_until
from .runs import Run, runs
from .undisturbed_fixture import STEPS, Undisturbed

__all__ = ["runs"]

pytestmark = pytest.mark.e2e


def steps(place: str) -> list[int]:
    """Of the good checkpoints, newest first."""
    return [found.info.step for found in survey(open_place(place), None, everything=True) if found.info.problem is None]


def test_another_machine_goes_on_from_the_bucket(
    server: StorageServer, undisturbed_of: Callable[[int], Undisturbed], tmp_path: Path, runs: list[Run]
) -> None:
    """Nothing else is left: neither the output folder nor a process, and nobody could save a last checkpoint."""
    place, whole = f"{server.bucket('jobs')}/{tmp_path.name}", undisturbed_of(STEPS).job.losses()
    job = Job(tmp_path / "job")
    run = Run(job, f"checkpoint.path={place}")
    runs.append(run)
    job.wait_for_step(60, run.process)
    wait_until(lambda: bool(steps(place)), run.process)
    run.process.kill()
    run.process.wait(timeout=60)
    wait_until(lambda: not job.processes(), seconds=10)
    newest = steps(place)[0]
    assert not (job.output / "checkpoints").exists()
    shutil.rmtree(job.output)

    done = job.run("--set", f"checkpoint.path={place}")
    assert done.returncode == 0, done.stdout + done.stderr
    losses = job.losses()
    assert list(losses) == list(range(newest + 1, STEPS + 1))
    assert losses == {step: whole[step] for step in losses}
    assert steps(place)[0] == STEPS
    assert len(steps(place)) in (3, 4), "three are kept, and the best"
    refused = job.run("--fresh", "--set", f"checkpoint.path={place}")
    assert refused.returncode == 2
    assert refused.stderr == f"error: --fresh moves nothing aside in {place}: choose another checkpoint.path and output.path\n"


def test_who_may_not_write_there_is_told_before_anything_starts(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    done = Job(tmp_path).run("--set", f"checkpoint.path={s3.bucket('jobs')}/x")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: checkpoint.path cannot be used: s3://jobs/x/.lmj-check-")
    assert "SignatureDoesNotMatch" in last
    assert "another" not in done.stderr + done.stdout


@pytest.mark.slow
def test_a_server_that_goes_away_stops_no_training(tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path / "job")
    with serving(tmp_path) as first:
        lead(first, monkeypatch)
        place = f"{first.bucket('jobs')}/x"
        run = Run(job, f"checkpoint.path={place}", "training.maxSteps=6000", "checkpoint.everySteps=200")
        runs.append(run)
        wait_until(lambda: bool(steps(place)), run.process)
    # Nobody answers there now.
    said = run.wait_for_stale("True")
    assert place in said["message"]
    other = job.worker(0)
    os.kill(job.worker(1), signal.SIGKILL)
    wait_until(lambda: job.status()["view"]["number"] == 2, run.process)
    assert job.worker(0) == other, "the survivor kept its process"
    job.wait_for_step(max(job.losses()) + 60, run.process)
    with serving(tmp_path, first.port, first.secret):
        run.finish()
        status = job.status()
        assert (status["phase"], status["restarts"], status["stepsLost"]) == ("Succeeded", 1, 0)
        assert steps(place)[0] == 6000
        assert list(job.losses()) == list(range(1, 6001))
