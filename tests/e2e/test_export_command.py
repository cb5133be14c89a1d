"""``lmj export`` by the real command: of jobs that train, of one that is over, and of one whose checkpoints lie in a bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from s3_server import S3Server
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from lmj_trainer.checkpoint.scan import survey
from lmj_trainer.store.registry import open_place

from .jobs import DEADLINE, Job, wait_until
from .runs import Run, runs
from .undisturbed_fixture import STEPS, Undisturbed

__all__ = ["runs"]

pytestmark = pytest.mark.e2e


def lmj(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmj_operator.cli.main", *map(str, words)]
    # No GPU is looked for.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False, env=environment)


def export(output: Path, folder: Path, *more: object) -> int:
    """The step of the model that is in ``folder`` then."""
    done = lmj("export", output, "--to", folder, "-o", "json", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(json.loads(done.stdout)["step"])


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def steps(place: str) -> list[int]:
    """Of the good checkpoints, newest first."""
    return [found.info.step for found in survey(open_place(place), None) if found.info.problem is None]


def test_the_model_of_a_job_that_is_over_is_its_own(undisturbed_of: Callable[[int], Undisturbed], tmp_path: Path) -> None:
    job = undisturbed_of(STEPS).job
    assert export(job.output, tmp_path / "model") == STEPS
    assert files(tmp_path / "model") == files(job.output / "model")
    refused = lmj("export", job.output, "--to", tmp_path / "other", "--step", 7)
    assert refused.returncode == 2
    place = job.output / "checkpoints"
    assert refused.stderr.startswith(f"error: {place} has no checkpoint of step 7; there are those of steps {STEPS}, ")
    assert not (tmp_path / "other").exists()


def test_while_the_job_trains(tmp_path: Path, runs: list[Run]) -> None:
    """Its checkpoints come and go meanwhile, and it takes no notice."""
    job = Job(tmp_path / "job")
    run = Run(job, "training.maxSteps=100000", "training.epochs=10000")
    runs.append(run)
    wait_until(lambda: bool(steps(str(job.output / "checkpoints"))), run.process)
    found = []
    for name in ("first", "second"):
        found.append(export(job.output, tmp_path / name))
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / name)
        assert model.config.id2label == {0: "negative", 1: "positive"}
        job.wait_for_step(found[-1] + 60, run.process)
    assert 0 < found[0] < found[1]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second")]
    assert weights[0] != weights[1]
    said = lmj("predict", tmp_path / "second", "film plot good very scene")
    assert said.returncode == 0, said.stderr
    assert said.stdout.split("\t")[0] in ("negative", "positive")
    status = job.status()
    assert (status["phase"], status["restarts"], status["stepsLost"]) == ("Running", 0, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "job", "second"]


@pytest.mark.slow
def test_checkpoints_in_a_bucket_and_no_bookkeeping_of_a_local_run(s3: S3Server, tmp_path: Path) -> None:
    """As on a cluster's volume."""
    job = Job(tmp_path / "job")
    place = f"{s3.bucket('jobs')}/{tmp_path.name}"
    done = job.run("--set", f"checkpoint.path={place}", "--set", "training.maxSteps=40")
    assert done.returncode == 0, done.stdout + done.stderr
    (job.output / ".lmj" / "job.json").unlink()
    assert export(job.output, tmp_path / "model") == 40
    assert files(tmp_path / "model") == files(job.output / "model")
    assert export(job.output, tmp_path / "at-20", "--step", 20) == 20
    assert (
        load_file(tmp_path / "at-20" / "model.safetensors").keys() == load_file(tmp_path / "model" / "model.safetensors").keys()
    )


@pytest.mark.slow
def test_adapters(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    document = yaml.safe_load(job.file.read_text())
    document["spec"]["model"]["lora"] = {"r": 4, "alpha": 8, "targetModules": ["query", "dense"]}
    job.file.write_text(yaml.safe_dump(document))
    done = job.run("--set", "training.maxSteps=40")
    assert done.returncode == 0, done.stdout + done.stderr
    told = lmj("export", job.output, "--to", tmp_path / "model")
    assert told.returncode == 0, told.stderr
    assert "with the adapter merged into its weights" in told.stdout
    assert files(tmp_path / "model" / "adapter") == files(job.output / "adapter")
    (tmp_path / "model" / "adapter").rename(tmp_path / "adapter")
    assert files(tmp_path / "model") == files(job.output / "model")
