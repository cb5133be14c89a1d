"""What a replica has of a step's gradient: the sums of the largest nodes within its shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmj_api.shards import nodes, sibling

if TYPE_CHECKING:
    from torch import Tensor

    from lmj_api.shards import Node


class ShardSums:
    """Shards add up in ``gradient``, one after the other. What is complete and waits for more lies in buffers beside it:
    :func:`~lmj_api.shards.waiting` says how many.
    """

    def __init__(self, gradient: Tensor, shards: int) -> None:
        """``gradient``: float32 ``[elements]``, all that backward passes add to; zero before a step."""
        self._gradient, self._root = gradient, (0, shards)
        self._held = range(0)
        self._shard = 0
        self._waiting: list[tuple[Node, Tensor]] = []
        self._free: list[Tensor] = []

    def begin(self, held: range) -> None:
        """A step begins, of which this replica computes the shards ``held``. What an earlier one left waiting is nobody's."""
        self._free += [buffer for _, buffer in self._waiting]
        self._waiting.clear()
        self._held, self._shard = held, held.start

    @property
    def in_place(self) -> bool:
        """Whether what is in the gradient, once the last shard is added, is the sum of all shards as it is."""
        return len(self._held) == self._root[1] == 1

    @torch.no_grad()
    def reach(self, shard: int) -> None:
        """The next thing that is added to the gradient is of ``shard``; all of those before it is in there."""
        while self._shard < shard:
            node = self._fold()
            buffer = self._free.pop() if self._free else torch.empty_like(self._gradient)
            self._waiting.append((node, buffer.copy_(self._gradient)))
            self._gradient.zero_()
            self._shard += 1

    @torch.no_grad()
    def end(self) -> dict[Node, Tensor]:
        """All is added: the sums by their nodes, of which the last lies in the gradient itself."""
        self.reach(self._held.stop - 1)
        node = self._fold()
        assert [*(n for n, _ in self._waiting), node] == nodes(self._held, self._root)
        return {**dict(self._waiting), node: self._gradient}

    def _fold(self) -> Node:
        """Add to the shard in the gradient all that waits for it."""
        node = (self._shard, self._shard + 1)
        while self._waiting and self._waiting[-1][0] == sibling(node, self._root):
            (first, _), buffer = self._waiting.pop()
            # The order of the two does not matter to the bits, which of them are added does.
            self._gradient.add_(buffer)
            self._free.append(buffer)
            node = (first, node[1])
        return node
