"""A job that trains adapters moves, loses a worker and ends as one that was left alone; what it made is an ordinary model."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from faults import last_step
from jobs import DEADLINE, Job, wait_until
from peft import PeftConfig
from safetensors import safe_open
from test_chaos import finish, running, steps_and_losses
from test_moves import SPARSE, leave, migrate
from transformers import pipeline

pytestmark = pytest.mark.e2e

# Where the rate is no function of the length, a run may end wherever the disturbed one was left.
SETTINGS = [SPARSE, "training.schedule=Constant", "training.warmupRatio=0"]


def adapting(folder: Path) -> Job:
    job = Job(folder)
    document = yaml.safe_load(job.file.read_text())
    document["spec"]["model"]["lora"] = {"r": 4, "alpha": 8, "dropout": 0.1, "targetModules": ["query", "dense"]}
    job.file.write_text(yaml.safe_dump(document))
    return job


def newest(job: Job) -> tuple[Path, dict[str, Any]]:
    """Folder and manifest of the newest checkpoint."""
    path = max((job.output / "checkpoints").glob("*/manifest.json"), key=lambda p: json.loads(p.read_text())["step"])
    return path.parent, json.loads(path.read_text())


def test_adapters_move_and_survive(tmp_path: Path) -> None:
    job, undisturbed = adapting(tmp_path / "disturbed"), adapting(tmp_path / "undisturbed")
    with running(job, 100_000, *SETTINGS) as process:
        wait_until(lambda: last_step(job) > 3, process)
        told = migrate(job, 1, 0)
        assert {(i["rank"], i["kind"], i["stepsLost"]) for i in told["incidents"]} == {(0, "Moved", 0), (1, "Moved", 0)}
        os.kill(job.worker(1), signal.SIGKILL)
        wait_until(lambda: job.status()["restarts"] == 1 and job.status()["phase"] == "Running", process)
        leave(job, process, last_step(job) + 10)
    status = job.status()
    assert (status["migrations"], status["stepsLost"]) == (2, 0)
    folder, manifest = newest(job)
    steps = manifest["step"]
    losses = steps_and_losses(job)
    assert [step for step, _ in losses] == list(range(1, steps + 1))

    with running(undisturbed, steps, *SETTINGS) as process:
        finish(undisturbed, process)
    assert losses == steps_and_losses(undisturbed)
    # Weights and moments, byte by byte: digests of each rank's file.
    assert manifest["files"] == newest(undisturbed)[1]["files"]
    for file in manifest["files"]:
        with safe_open(folder / file["name"], framework="pt") as tensors:
            assert all(".lora_" in name or ".modules_to_save." in name for name in tensors.keys()), file["name"]  # noqa: SIM118

    model = undisturbed.output / "model"
    classify = pipeline("text-classification", model=str(model), device=torch.device("cpu"))
    text = "film plot good very scene"
    answer = classify(text)[0]
    command = [sys.executable, "-m", "lmj_operator.cli.main", "predict", str(model), text]
    said = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True).stdout
    assert said.split("\t")[:2] == [answer["label"], f"{answer['score']:.4f}"]
    assert PeftConfig.from_pretrained(str(undisturbed.output / "adapter")).r == 4
