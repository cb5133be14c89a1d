"""A span of a gradient without its blocks of zeros: a table of tokens has gradients for those alone that are in the batch."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64
"""Elements of one."""
_EVERY = 16
"""One block of so many is looked at to see whether a span has blocks of zeros at all."""

Blocks = tuple[Tensor, Tensor]
"""Which blocks are not all zeros, int64 ``[blocks]``, and these, float32 ``[blocks, BLOCK]``; on the CPU."""


@torch.no_grad()
def packed(span: Tensor) -> Blocks | None:
    """The blocks of ``span``, float32 ``[elements]``, that are not all zeros; None: they are not less than half of it."""
    if span.numel() % BLOCK:
        return None
    # As whole numbers: a negative zero is no zero, so that what is unpacked has the same bits.
    whole = span.view(torch.int32).view(-1, BLOCK)
    if _is_dense(_filled(whole[::_EVERY])):
        return None
    filled = _filled(whole)
    if _is_dense(filled):
        return None
    blocks = filled.nonzero().squeeze(1)
    return blocks.cpu(), span.view(-1, BLOCK)[blocks].cpu()


@torch.no_grad()
def unpack(blocks: Blocks, span: Tensor) -> Tensor:
    """Write into ``span`` what was packed of one as long. Returns it."""
    which, values = blocks
    span.zero_()
    span.view(-1, BLOCK).index_copy_(0, which.to(span.device), values.to(span.device))
    return span


def _filled(blocks: Tensor) -> Tensor:
    return (blocks.amax(1) != 0) | (blocks.amin(1) != 0)


def _is_dense(filled: Tensor) -> bool:
    return 2 * int(filled.sum()) >= len(filled)
