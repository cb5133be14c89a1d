"""Spans of gradients as they are sent: the same bits, whatever is in them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmj_trainer.strategy.pipeline.blocks import BLOCK, packed, unpack

VALUES = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -1e-45])


@given(st.integers(1, 200), st.dictionaries(st.integers(0, 200 * BLOCK - 1), VALUES, max_size=20))
def test_what_is_packed_and_unpacked_has_the_same_bits(blocks: int, values: dict[int, float]) -> None:
    span = torch.zeros(blocks * BLOCK)
    for at, value in values.items():
        if at < len(span):
            span[at] = value
    made = packed(span)
    filled = {at // BLOCK for at in span.view(torch.int32).nonzero().flatten().tolist()}
    if made is None:
        # Which blocks are looked at first may be those that are filled.
        looked = {at for at in filled if at % 16 == 0}
        assert 2 * len(filled) >= blocks or 2 * len(looked) >= -(-blocks // 16)
        return
    assert made[0].tolist() == sorted(filled)
    there = torch.full_like(span, 7.0)
    assert unpack(made, there) is there
    assert torch.equal(there.view(torch.int32), span.view(torch.int32))


@pytest.mark.parametrize("span", [torch.ones(64 * BLOCK), torch.zeros(BLOCK + 16), torch.ones(16)])
def test_what_is_not_worth_it_is_not_packed(span: torch.Tensor) -> None:
    assert packed(span) is None


def test_a_dense_span_whose_first_blocks_are_zeros_is_not_packed() -> None:
    span = torch.ones(64, BLOCK)
    span[::16] = 0.0
    assert packed(span.view(-1)) is None
