"""A job that trains adapters moves, loses workers meanwhile and ends as one that was left alone; what it made is an ordinary model."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from faults import last_step
from jobs import DEADLINE, Job, wait_until
from moving import SETTINGS, Phase, Victim, assert_as_undisturbed, disturb, leave, migrate
from peft import PeftConfig
from safetensors import safe_open
from test_chaos import running
from test_moves import EVERY
from transformers import pipeline

pytestmark = pytest.mark.e2e


def adapting(folder: Path) -> Job:
    job = Job(folder)
    document = yaml.safe_load(job.file.read_text())
    document["spec"]["model"]["lora"] = {"r": 4, "alpha": 8, "dropout": 0.1, "targetModules": ["query", "dense"]}
    job.file.write_text(yaml.safe_dump(document))
    return job


@pytest.mark.slow
def test_adapters_move_and_survive(tmp_path: Path) -> None:
    job = adapting(tmp_path / "disturbed")
    with running(job, 100_000, *SETTINGS) as process:
        wait_until(lambda: last_step(job) > 3, process)
        told = migrate(job, 1, 0)
        assert {(i["rank"], i["kind"], i["stepsLost"]) for i in told["incidents"]} == {(0, "Moved", 0), (1, "Moved", 0)}
        os.kill(job.worker(1), signal.SIGKILL)
        wait_until(lambda: job.status()["restarts"] == 1 and job.status()["phase"] == "Running", process)
        disturb(job, process, 1, Phase.COPYING, Victim.TARGET_WORKER)
        disturb(job, process, 0, Phase.LEFT, Victim.SOURCE)
        leave(job, process, last_step(job) + 10)
    status = job.status()
    assert (status["migrations"], status["stepsLost"]) == (4, 0)
    undisturbed = assert_as_undisturbed(job, adapting, tmp_path / "undisturbed")
    for file in (job.output / "checkpoints").glob("*/*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            assert all(".lora_" in name or ".modules_to_save." in name for name in tensors.keys()), file  # noqa: SIM118

    model = undisturbed.output / "model"
    classify = pipeline("text-classification", model=str(model), device=torch.device("cpu"))
    text = "film plot good very scene"
    answer = classify(text)[0]
    command = [sys.executable, "-m", "lmj_operator.cli.main", "predict", str(model), text]
    said = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True).stdout
    assert said.split("\t")[:2] == [answer["label"], f"{answer['score']:.4f}"]
    assert PeftConfig.from_pretrained(str(undisturbed.output / "adapter")).r == 4


@pytest.mark.slow
@pytest.mark.parametrize("faults", EVERY.values(), ids=EVERY)
def test_a_death_while_adapters_move_costs_nothing(tmp_path: Path, faults: list[tuple[int, Phase, Victim]]) -> None:
    job = adapting(tmp_path / "disturbed")
    with running(job, 100_000, *SETTINGS) as process:
        wait_until(lambda: last_step(job) > 3, process)
        for rank, phase, victim in faults:
            disturb(job, process, rank, phase, victim)
        leave(job, process, last_step(job) + 20)
    assert job.status()["stepsLost"] == 0
    assert_as_undisturbed(job, adapting, tmp_path / "undisturbed")
