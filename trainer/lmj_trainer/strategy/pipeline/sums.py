"""What a replica has of a step's gradient: the sums of the largest nodes within its shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmj_api.shards import sibling

if TYPE_CHECKING:
    from torch import Tensor

    from lmj_api.shards import Node


class ShardSums:
    """Shards add up in ``gradient``, one after the other. What is complete and waits for more lies in buffers beside it:
    :func:`~lmj_api.shards.waiting` says how many.
    """

    def __init__(self, gradient: Tensor, shards: int) -> None:
        """``gradient``: float32 ``[elements]``, all that backward passes add to; zero before a step."""
        self._gradient, self.shards = gradient, shards
        self.root: Node = (0, shards)
        self._held = range(0)
        self._shard = 0
        self._waiting: list[tuple[Node, Tensor]] = []
        self._free: list[Tensor] = []

    def begin(self, held: range) -> None:
        """A step begins, of which this replica computes the shards ``held``. What an earlier one left waiting is nobody's."""
        self._free += [buffer for _, buffer in self._waiting]
        self._waiting.clear()
        self._held, self._shard = held, held.start

    @torch.no_grad()
    def reach(self, shard: int) -> None:
        """The next thing that is added to the gradient is of ``shard``; all of those before it is in there."""
        while self._shard < shard:
            node, complete = self._folded()
            for _, buffer in complete:
                self._gradient.add_(buffer)
            del self._waiting[len(self._waiting) - len(complete) :]
            self._free += [buffer for _, buffer in complete]
            buffer = self._free.pop() if self._free else torch.empty_like(self._gradient)
            self._waiting.append((node, buffer.copy_(self._gradient)))
            self._gradient.zero_()
            self._shard += 1

    @torch.no_grad()
    def of(self, span: slice) -> dict[Node, Tensor]:
        """The sums of ``span`` by their nodes, in order. Nothing is added to the gradient there any more, and it is asked for once."""
        assert self._shard == self._held.stop - 1, "later shards are to be added"
        node, complete = self._folded()
        gradient = self._gradient[span]
        for _, buffer in complete:
            gradient.add_(buffer[span])
        waiting = self._waiting[: len(self._waiting) - len(complete)]
        return {**{before: buffer[span] for before, buffer in waiting}, node: gradient}

    def _folded(self) -> tuple[Node, list[tuple[Node, Tensor]]]:
        """The node that the shard in the gradient completes, and what waits for it, in the order in which it is added."""
        node, complete = (self._shard, self._shard + 1), list[tuple["Node", "Tensor"]]()
        for before, buffer in reversed(self._waiting):
            if before != sibling(node, self.root):
                break
            # The order of the two does not matter to the bits, which of them are added does.
            complete.append((before, buffer))
            node = (before[0], node[1])
        return node, complete
