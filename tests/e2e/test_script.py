"""``lmj.Trainer`` with real processes: a script as ``python`` runs it, shared by replicas, disturbed, and evaluated by its own metrics."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import Job, wait_until
from moving import migrate
from safetensors.torch import load_file
from scripts import environment, lmj_run, losses, python, write_script
from transformers import BertForSequenceClassification

pytestmark = pytest.mark.e2e

ARGUMENTS = "'per_device_train_batch_size': 4, 'num_train_epochs': 2"
# What is best by it is not what is best by the loss: the larger scores are, the worse.
METRICS = """eval_dataset=rows(30, 1), compute_metrics=lambda given: {
            "accuracy": float((given.predictions.argmax(1) == given.label_ids).mean()),
            "size": float(abs(given.predictions).mean()), "rows": len(given.label_ids),
        },"""
BEST = (
    f"{ARGUMENTS}, 'eval_strategy': 'steps', 'eval_steps': 8, 'save_strategy': 'steps', 'save_steps': 8, 'load_best_model_at_end': True,"
    " 'metric_for_best_model': 'eval_size', 'greater_is_better': False, 'per_device_eval_batch_size': 8"
)


class ScriptJob(Job):
    """The job of the script in ``folder``."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.output = folder, folder / "out"
        self.file = write_script(folder, arguments=f"'per_device_train_batch_size': 4, 'max_steps': {steps}, 'save_steps': 1000")
        self.metrics = self.output / "metrics.jsonl"

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "lmj_operator.cli.main", "run", "train.py", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=self.folder, env=environment())


def same(one: Path, other: Path) -> None:
    """Every step's loss and the final weights are equal, to the bit."""
    assert losses(one) == losses(other)
    first, second = (load_file(folder / "saved" / "model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a script that python ran."""
    file = write_script(tmp_path_factory.mktemp("alone"), arguments=ARGUMENTS)
    done = python(file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "steps 32"
    return file.parent


@pytest.mark.slow
def test_two_replicas_are_one(alone: Path, tmp_path: Path) -> None:
    done = lmj_run(write_script(tmp_path, arguments=ARGUMENTS), "--replicas", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    same(alone, tmp_path)
    found = losses(alone)
    assert sum(found[-8:]) < sum(found[:8])
    again = python(tmp_path / "train.py")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "finished already, nothing to do: fresh=True trains it again" in again.stdout
    assert again.stdout.splitlines()[-1] == "steps 32"
    changed = write_script(tmp_path, arguments=ARGUMENTS, dropout=0.2)
    other = lmj_run(changed)
    assert other.returncode == 2
    (told,) = [line for line in other.stderr.splitlines() if line.startswith("error: ")]
    assert "has the results of another job (model.python_sha256 " in told
    assert lmj_run(changed, "--fresh").returncode == 0


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_rank_that_is_killed_and_one_that_moves_change_no_bit(tmp_path: Path, replicas: int) -> None:
    job = ScriptJob(tmp_path / "killed", 400)
    process = job.start("--replicas", str(replicas))
    try:
        wait_until(lambda: max(job.losses(), default=0) > 20, process)
        os.kill(job.worker(replicas - 1), signal.SIGKILL)
        wait_until(lambda: job.status()["restarts"] == 1 and job.status()["phase"] == "Running", process)
        moved = migrate(job, 0)
        out, err = job.end(process)
    finally:
        process.kill()
        wait_until(lambda: not job.processes(), seconds=30)
    assert process.returncode == 0, out + err
    status = job.status()
    assert status["restarts"] == 1
    assert status["stepsLost"] == 0
    assert [incident["rank"] for incident in moved["incidents"] if incident["kind"] == "Moved"] == [0]
    undisturbed = ScriptJob(tmp_path / "undisturbed", 400)
    done = python(undisturbed.file)
    assert done.returncode == 0, done.stdout + done.stderr
    same(job.folder, undisturbed.folder)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "out" / "evaluation.json").read_text())
    return found


@pytest.mark.slow
def test_the_best_weights_are_chosen_by_the_script_s_metric(tmp_path: Path) -> None:
    file = write_script(tmp_path, arguments=BEST, more=METRICS)
    again = "found = trainer.predict(rows(30, 1), metric_key_prefix='again').metrics"
    again += "; print('again', found['again_size'], found['again_accuracy'])"
    file.write_text(file.read_text() + f"    {again}\n    print(trainer.evaluate())\n")
    done = lmj_run(file, "--replicas", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    found = evaluations(tmp_path)
    print(found)
    assert [each["step"] for each in found] == [8, 16, 24, 32]
    best = min(found, key=lambda each: each["metrics"]["size"])
    assert best is not min(found, key=lambda each: each["loss"]), "the test shows nothing"

    namespace: dict[str, Any] = {"__name__": "train"}
    exec(compile(file.read_text().replace("from lmj import Trainer", ""), "train", "exec"), namespace)
    rows = namespace["rows"](30, 1)
    model = BertForSequenceClassification.from_pretrained(tmp_path / "out" / "model").eval()
    with torch.no_grad():
        scores = torch.cat([model(torch.tensor([row["input_ids"] for row in rows[i : i + 8]])).logits for i in range(0, 30, 8)])
    labels = torch.tensor([row["label"] for row in rows])
    assert best["metrics"] == {"size": float(abs(scores.numpy()).mean()), "rows": 30.0}
    assert best["accuracy"] == (scores.argmax(1) == labels).double().mean().item()
    assert best["samples"] == 30
    predicted = next(line for line in done.stdout.splitlines() if line.startswith("again "))
    assert predicted == f"again {best['metrics']['size']} {best['accuracy']}"
    said = done.stdout.splitlines()[-1]
    assert said == str(
        {"eval_loss": best["loss"], "eval_accuracy": best["accuracy"], **{f"eval_{k}": v for k, v in best["metrics"].items()}}
    )
