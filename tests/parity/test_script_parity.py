"""A script that trains by ``lmj.Trainer`` has the bits that it has by ``transformers.Trainer``, where both add up the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scripts import losses, python, write_script

pytestmark = pytest.mark.e2e

# One row a micro-batch, two a step. A job cuts the first micro-batch of each part of a step in halves, where it has several rows,
# so with more rows both would add up the same gradients in another order.
STEPS = "'per_device_train_batch_size': 1, 'gradient_accumulation_steps': 2, 'max_steps': 40, 'logging_steps': 1, 'logging_strategy': 'steps'"


@pytest.mark.parametrize(
    "optim",
    ["'lr_scheduler_type': 'cosine'", pytest.param("'optim': 'sgd', 'max_grad_norm': 0.1", marks=pytest.mark.slow)],
)
def test_one_import_is_changed_and_no_bit(tmp_path: Path, optim: str) -> None:
    """Without dropout: each trainer has masks of its own."""
    for name in ("lmj", "plain_trainer"):
        file = write_script(tmp_path / name, arguments=f"{STEPS}, {optim}", trainer=name, dropout=0.0)
        done = python(file)
        assert done.returncode == 0, done.stdout + done.stderr
    ours, theirs = losses(tmp_path / "lmj"), losses(tmp_path / "plain_trainer")
    assert len(theirs) == 40
    # They add up a step's losses in float32.
    assert [float(np.float32(loss)) for loss in ours] == theirs
    first, second = (load_file(tmp_path / name / "saved" / "model.safetensors") for name in ("lmj", "plain_trainer"))
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert theirs[-1] != theirs[0]
