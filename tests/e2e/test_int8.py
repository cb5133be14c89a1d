"""A job that also makes its model in 8 bits, and what that one says of texts that were not trained on."""

import contextlib
import io
import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml
from jobs import DEADLINE, WORDS, Job

from lmj_trainer import evaluate, predict

pytestmark = pytest.mark.e2e

NEAR = 0.01
"""Probabilities may differ by so much: weights and activations are rounded to 1/254 of the largest beside them, in 13 layers."""


def lmj(*arguments: str) -> str:
    command = [sys.executable, "-m", "lmj_operator.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True).stdout


def here(command: Callable[[Sequence[str]], int], model: Path, *arguments: str) -> list[str]:
    """What the command says in this process: another would import everything once more."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert command([str(model), "-o", "json", *arguments]) == 0
    return said.getvalue().splitlines()


def test_the_model_in_8_bits_says_what_the_whole_one_does(tmp_path: Path) -> None:
    job = Job(tmp_path)
    document = yaml.safe_load(job.file.read_text())
    document["spec"]["output"]["int8"] = True
    document["spec"]["training"] |= {"maxSteps": 80, "learningRate": 0.01}
    job.file.write_text(yaml.safe_dump(document))
    assert job.run().returncode == 0
    whole, small = job.output / "model", job.output / "model-int8"
    assert (small / "model.safetensors").stat().st_size < (whole / "model.safetensors").stat().st_size

    pick, lines = random.Random(1), ["text,label"]
    for row in range(100):
        words = pick.choices(WORDS, k=6)
        words.insert(pick.randrange(7), ("bad", "good")[row % 2])
        lines.append(f"{' '.join(words)},{('negative', 'positive')[row % 2]}")
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    texts = [line.split(",")[0] for line in lines[1:]]
    new, of_whole = str(tmp_path / "new.csv"), [json.loads(line) for line in here(predict.main, whole, *texts)]
    of_small = [json.loads(line) for line in lmj("predict", str(small), "-o", "json", *texts).splitlines()]
    assert len(of_small) == len(texts)
    assert [said["label"] for said in of_small] == [said["label"] for said in of_whole]
    assert of_small != of_whole
    for one, other in zip(of_whole, of_small, strict=True):
        assert other["probability"] == pytest.approx(one["probability"], abs=NEAR)

    (line,) = here(evaluate.main, whole, new)
    evaluations = [json.loads(line), json.loads(lmj("evaluate", str(small), new, "-o", "json"))]
    assert evaluations[0]["accuracy"] == evaluations[1]["accuracy"] > 0.9
    assert evaluations[1]["loss"] == pytest.approx(evaluations[0]["loss"], abs=NEAR)
