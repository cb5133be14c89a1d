"""What is packed for a slow network is less, and the same to the bit; what came from it otherwise is refused."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmj_trainer.transport.packing import Packed
from lmj_trainer.transport.parts import ROW, Gradients


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=300))
def test_any_bits_come_back(bits: list[int]) -> None:
    values = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    assert torch.equal(Packed.of(values).unpack(len(bits)).view(torch.int32), values.view(torch.int32))


def test_gradients_are_an_eighth_less() -> None:
    torch.manual_seed(0)
    values = torch.cat([torch.randn(1 << 14) * scale for scale in (1e-3, 1e-4, 1e-6)])
    packed = Packed.of(values)
    assert packed.nbytes < 7 / 8 * values.nbytes
    assert torch.equal(packed.unpack(len(values)), values)


def _coded(data: bytes) -> torch.Tensor:
    coder = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return torch.frombuffer(bytearray(coder.compress(data) + coder.flush()), dtype=torch.uint8)


@pytest.mark.parametrize("high", [b"", b"12", b"1234", bytes(1 << 24)], ids=len)
def test_too_much_or_too_little_is_refused(high: bytes) -> None:
    """A bomb, too, is read no further than it is of use."""
    with pytest.raises(ValueError, match=r"^3 packed values came with [0-4] highest bytes"):
        replace(Packed.of(torch.ones(3)), high=_coded(high)).unpack(3)


def test_what_is_not_as_it_says_or_no_stream_is_refused() -> None:
    packed = Packed.of(torch.randn(1000))
    with pytest.raises(ValueError, match="1000 packed values came with"):
        replace(packed, high=packed.high[:-1]).unpack(1000)
    with pytest.raises(ValueError, match="1000 packed values cannot be read"):
        replace(packed, high=torch.full((1000,), 255, dtype=torch.uint8)).unpack(1000)
    for other in (packed, replace(packed, low=packed.low[:-1]), replace(packed, low=packed.low.view(10, 100))):
        with pytest.raises(ValueError, match=r"not 10+ packed values"):
            other.unpack(1000 if other is not packed else 10_000)


def test_what_would_be_more_stays_as_it_is() -> None:
    torch.manual_seed(0)
    noise = torch.randint(-(1 << 31), 1 << 31, (ROW,)).to(torch.int32).view(torch.float32)
    gradients = Gradients.of(1, 0, noise)
    assert gradients.packed() is gradients
    small = Gradients.of(1, 0, torch.randn(ROW))
    assert small.packed().nbytes < small.nbytes
