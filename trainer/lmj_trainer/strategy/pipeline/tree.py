"""The sum over the shards of a step, as :mod:`lmj_api.shards` says: one balanced binary tree, whichever ranks hold them.

Float addition is not associative, so what is added to what is a function of the number of shards alone: a replica adds up the largest nodes
within its shards, and the rest of the tree is added where both halves are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from lmj_api.shards import Node, halves

if TYPE_CHECKING:
    from torch import Tensor


def total(parts: Mapping[Node, Tensor], root: Node, result: Tensor) -> None:
    """The sum of ``root``, of which ``parts`` are nodes that cover it, into ``result``, which may be one of them."""
    if root in parts:
        result.copy_(parts[root])
        return
    left, right = (_total(parts, half) for half in halves(root))
    torch.add(left, right, out=result)


def _total(parts: Mapping[Node, Tensor], root: Node) -> Tensor:
    if root in parts:
        return parts[root]
    left, right = halves(root)
    return _total(parts, left) + _total(parts, right)


def total_loss(losses: Mapping[int, float], root: Node) -> float:
    """The same of one number for each shard."""
    first, end = root
    if end - first == 1:
        return losses[first]
    left, right = halves(root)
    return total_loss(losses, left) + total_loss(losses, right)
