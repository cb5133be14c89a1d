"""Float32 values for a network that is waited for: an eighth to a sixth less, and the same bits.

Signs and exponents of neighbours are alike, mantissas are noise. So the highest byte of each value (the sign and seven bits of the exponent)
is coded after Huffman, all others go as they are.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

_RAW = -zlib.MAX_WBITS
"""Deflate's stream, without a header and a check sum: the network has its own, and the whole state's digest is compared."""


@dataclass(frozen=True)
class Packed:
    """``[count]`` values."""

    low: Tensor
    """int16 ``[count]``: the lower two bytes."""
    middle: Tensor
    """uint8 ``[count]``: the one above."""
    high: Tensor
    """uint8: the highest ones, coded."""

    @property
    def nbytes(self) -> int:
        """Of all its tensors."""
        return self.low.nbytes + self.middle.nbytes + self.high.nbytes

    @classmethod
    def of(cls, values: Tensor) -> Packed:
        """Of ``values``, float32 ``[count]``, contiguous and on the CPU."""
        parts = values.view(torch.uint8).view(-1, 4)
        coder = zlib.compressobj(wbits=_RAW, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)
        high = bytearray(coder.compress(parts[:, 3].contiguous().numpy().data))
        high += coder.flush()
        return cls(values.view(torch.int16)[::2].clone(), parts[:, 2].clone(), torch.frombuffer(high, dtype=torch.uint8).clone())

    def unpack(self, count: int) -> Tensor:
        """The values, float32 ``[count]``. Raises ValueError when they are not so many, or cannot be read."""
        if self.low.shape != (count,) or self.middle.shape != (count,):
            raise ValueError(f"not {count} packed values but {tuple(self.low.shape)} and {tuple(self.middle.shape)}")
        coder = zlib.decompressobj(_RAW)
        try:
            # One byte more than is wanted at most: what comes from the network does not decide how much memory is taken.
            high = bytearray(coder.decompress(self.high.numpy().data, count + 1))
        except zlib.error as error:
            raise ValueError(f"{count} packed values cannot be read: {error}") from error
        if len(high) != count or not coder.eof:
            raise ValueError(f"{count} packed values came with {len(high)} highest bytes{'' if coder.eof else ' and more'}")
        values = torch.empty(count, dtype=torch.float32)
        values.view(torch.int16)[::2] = self.low
        parts = values.view(torch.uint8).view(-1, 4)
        parts[:, 2] = self.middle
        parts[:, 3] = torch.frombuffer(high, dtype=torch.uint8)
        return values
