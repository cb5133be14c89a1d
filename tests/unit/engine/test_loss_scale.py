"""The loss scale of Float16 training: as torch's own, and in one word."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmj_api.manifest import MOST_SKIPPED
from lmj_trainer.state.loss_scale import SKIP, LossScale


@pytest.mark.parametrize("overflows", [{0, 1, 2}, {2001, 2002, 2003, 4003, 6004}])
def test_it_adapts_as_that_of_torch(overflows: set[int]) -> None:
    """From the first step; and one step after it grew, one before it would, and just after."""
    weight = torch.zeros(1, requires_grad=True)
    # It has a gradient, and takes no time to change nothing with it.
    optimizer: Any = SimpleNamespace(param_groups=[{"params": [weight]}], step=lambda: None)
    scaler = torch.amp.GradScaler("cpu")
    weight.grad = torch.zeros(1)
    scaler.scale(torch.zeros(1))  # before it there is no scale
    ours = LossScale(0)
    for step in range(8100):
        assert ours.factor == scaler.get_scale(), f"step {step}"
        overflowed = step in overflows
        weight.grad.fill_(float("inf") if overflowed else 1.0)
        scaler.step(optimizer)
        scaler.update()
        ours = ours.after(SKIP if overflowed else 0.5)
    assert (ours.step, ours.skipped) == (8100, len(overflows))


def test_it_stays_within_its_bounds() -> None:
    least = LossScale(0, exponent=0)
    assert least.exhausted
    assert not LossScale(0, exponent=1).exhausted
    assert least.after(SKIP).factor == 1.0
    assert LossScale(0, skipped=MOST_SKIPPED).exhausted
    most = LossScale(0, exponent=31, good=1999)
    assert most.after(1.0) == LossScale(1, exponent=31, good=1999)


@given(st.integers(0, 2**31 - 1), st.integers(0, 31), st.integers(0, 1999), st.integers(0, MOST_SKIPPED))
def test_a_word_holds_all_of_it(step: int, exponent: int, good: int, skipped: int) -> None:
    scale = LossScale(step, exponent, good, skipped)
    if scale != LossScale(0, 0, 0, 0):  # which no training has: that of step 0 is larger
        assert LossScale.unpacked(scale.packed()) == scale
    assert 0 <= scale.packed() < 2**63
    assert LossScale(step, **scale.kept) == scale


def test_no_word_is_no_scale() -> None:
    assert LossScale.unpacked(0) is None
