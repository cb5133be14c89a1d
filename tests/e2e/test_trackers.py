"""A run in MLflow's real server, whose worker is killed, and a server that is away meanwhile."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow_server
import pytest
import yaml
from cluster.errors import Unavailable
from jobs import Job, wait_until
from s3_server import S3Server

from lmj_trainer.checkpoint.scan import survey
from lmj_trainer.store.registry import open_place

from .runs import Run, runs

__all__ = ["runs"]

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SHOWN = str(Path(__file__).parents[1] / "unit" / "trackers" / "shown.py")
STEPS = 120


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    try:
        mlflow_server.ensure_server()
    except Unavailable as error:
        pytest.skip(str(error))
    return tmp_path / "server"


def tracked(folder: Path, port: int) -> Job:
    job = Job(folder)
    document = yaml.safe_load(job.file.read_text())
    document["spec"]["training"]["maxSteps"] = STEPS
    document["spec"]["output"]["trackers"] = [{"kind": "MLflow", "project": "proof", "uri": f"http://127.0.0.1:{port}"}]
    job.file.write_text(yaml.safe_dump(document))
    return job


def shown(port: int, job: Job) -> dict[str, Any]:
    command = [sys.executable, SHOWN, "MLflow", f"http://127.0.0.1:{port}", job.identity().id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def test_a_killed_worker_and_a_resumed_run_are_one_tracked_run(folder: Path, tmp_path: Path) -> None:
    port = mlflow_server.free_port()
    job = tracked(tmp_path / "job", port)
    with mlflow_server.serving(folder, port):
        process = job.start()
        job.wait_for_step(20, process)
        os.kill(job.worker(0), signal.SIGKILL)
        wait_until(lambda: job.status()["view"]["number"] == 2, process)
        job.wait_for_step(max(job.losses()) + 5, process)
        process.terminate()
        out, err = process.communicate(timeout=120)
        assert process.returncode == 130, out + err
        done = job.run()
        assert done.returncode == 0, done.stdout + done.stderr
        told = shown(port, job)
    assert told["runs"] == 1
    assert told["state"] == "FINISHED"
    assert told["metrics"]["train/loss"] == [[step, loss] for step, loss in sorted(job.losses().items())]
    assert [step for step, _ in told["metrics"]["train/loss"]] == list(range(1, STEPS + 1))
    evaluations = json.loads((job.output / "evaluation.json").read_text())
    for split in ("validation", "test"):
        wanted = [[e["step"], e["accuracy"]] for e in evaluations if e["split"] == split]
        assert told["metrics"][f"{split}/accuracy"] == wanted
    assert any("killed by SIGKILL" in note or "new worker" in note for note in told["notes"])


def test_results_in_a_bucket_are_shown_whole_by_whichever_machine_goes_on(
    folder: Path, tmp_path: Path, s3: S3Server, runs: list[Run]
) -> None:
    """The second has nothing of the first, which was cut off: neither its files nor how far its tracker was."""
    port, place = mlflow_server.free_port(), f"{s3.bucket('jobs')}/{tmp_path.name}"
    job = tracked(tmp_path / "job", port)
    sets = [f"output.path={place}", f"output.scratch={job.output}", "checkpoint.everySteps=20"]
    with mlflow_server.serving(folder, port):
        run = Run(job, *sets)
        runs.append(run)
        job.wait_for_step(60, run.process)
        wait_until(lambda: survey(open_place(f"{place}/checkpoints"), None, everything=True) != [], run.process)
        run.process.kill()
        run.process.wait(timeout=60)
        wait_until(lambda: not job.processes(), seconds=10)
        shutil.rmtree(job.output)
        done = job.run(*(word for each in sets for word in ("--set", each)))
        assert done.returncode == 0, done.stdout + done.stderr
        told = shown(port, job)
        assert told["state"] == "FINISHED"
        assert told["metrics"]["train/loss"] == [[step, loss] for step, loss in sorted(job.losses().items())]
        assert [step for step, _ in told["metrics"]["train/loss"]] == list(range(1, STEPS + 1))
        again = subprocess.run(
            [sys.executable, "-m", "lmj_operator.cli.main", "track", place], capture_output=True, text=True, timeout=180
        )
        assert again.returncode == 0, again.stdout + again.stderr
        assert shown(port, job)["metrics"] == told["metrics"]


def test_a_server_that_is_away_fails_nothing_and_gets_all_when_it_is_asked_again(folder: Path, tmp_path: Path) -> None:
    port = mlflow_server.free_port()
    job = tracked(tmp_path / "job", port)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"MLflow (http://127.0.0.1:{port}) fails: " in done.stdout
    assert "did not take all: " in done.stdout
    with mlflow_server.serving(folder, port):
        again = subprocess.run(
            [sys.executable, "-m", "lmj_operator.cli.main", "track", str(job.output)], capture_output=True, text=True, timeout=180
        )
        assert again.returncode == 0, again.stdout + again.stderr
        told = shown(port, job)
    assert [step for step, _ in told["metrics"]["train/loss"]] == list(range(1, STEPS + 1))
