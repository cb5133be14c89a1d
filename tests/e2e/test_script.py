"""``lmj.Trainer`` with real processes: a script as ``python`` runs it, shared by replicas, and disturbed."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from scripts import lmj_run, losses, python, write_script

pytestmark = pytest.mark.e2e

ARGUMENTS = "'per_device_train_batch_size': 4, 'num_train_epochs': 2"


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


def test_two_replicas_are_one(alone: Path, tmp_path: Path) -> None:
    done = lmj_run(write_script(tmp_path, arguments=ARGUMENTS), "--replicas", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    same(alone, tmp_path)
    found = losses(alone)
    assert sum(found[-8:]) < sum(found[:8])
