"""The sum of all replicas' gradients: each replica adds up its part of the elements for all, in the tree's order, and sends it to all.

That is a reduce-scatter and an all-gather by direct messages, with as many bytes as a ring where replicas divide the shards evenly. It runs
over the view's transport: a replica that dies breaks the view, and with it every exchange under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmj_api.shards import nodes, share
from lmj_trainer.strategy.pipeline.tree import total
from lmj_trainer.transport.envelope import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from lmj_api.shards import Node
    from lmj_trainer.group.group import Group

_PIECE = 1 << 20
"""Elements of a message, at most."""
_ALIGN = 16


def own_elements(size: int, replicas: int, replica: int) -> slice:
    """The elements that ``replica`` adds up, of ``size``."""
    cut = [min(size, -(-size * k // replicas // _ALIGN) * _ALIGN) for k in (replica, replica + 1)]
    return slice(*cut)


def _pieces(elements: slice) -> Iterator[slice]:
    for start in range(elements.start, elements.stop, _PIECE):
        yield slice(start, min(start + _PIECE, elements.stop))


class Exchange:
    """That of one rank with those of the same stage in other replicas."""

    def __init__(self, group: Group, shards: int) -> None:
        topology = group.topology
        me = topology.rank(group.rank)
        present = topology.present
        self._group, self._shards, self._replicas, self._me = group, shards, len(present), present.index(me.replica)
        self._ranks = list(topology.holders(me.stage))
        """By replica; those in the view are counted from 0 here."""

    @torch.no_grad()
    def run(self, step: int, sums: Mapping[Node, Tensor], gradient: Tensor) -> None:
        """Put the sum of all shards into ``gradient``, float32 ``[elements]``. ``sums``: this replica's, by node. Raises ViewBrokenError."""
        size, root = len(gradient), (0, self._shards)
        others = [replica for replica in range(self._replicas) if replica != self._me]
        held = {replica: nodes(share(self._shards, self._replicas, replica), root) for replica in others}
        ours = sorted(sums)
        # Each begins with another one, so that no rank is sent to by all at once.
        for replica in [*others[self._me :], *others[: self._me]]:
            for piece, elements in enumerate(_pieces(own_elements(size, self._replicas, replica))):
                sent = [_sendable(sums[node][elements]) for node in ours]
                self._group.send(self._ranks[replica], Kind.SUMS, step, piece, sent)
        mine = own_elements(size, self._replicas, self._me)
        for piece, elements in enumerate(_pieces(mine)):
            parts = {node: sums[node][elements] for node in ours}
            for replica in others:
                told = self._group.take(Kind.SUMS, step, self._ranks[replica], piece)
                parts |= {node: part.to(gradient.device) for node, part in zip(held[replica], told, strict=True)}
            result = total(parts, root)
            gradient[elements].copy_(result)
            for replica in others:
                self._group.send(self._ranks[replica], Kind.SUM, step, piece, result.cpu())
        for replica in others:
            for piece, elements in enumerate(_pieces(own_elements(size, self._replicas, replica))):
                gradient[elements].copy_(self._group.take(Kind.SUM, step, self._ranks[replica], piece))


def _sendable(part: Tensor) -> Tensor:
    # A copy: a transport sends a whole storage as it is, and what it sends must not change until it is there.
    return part.cpu() if part.device.type != "cpu" else part.clone()
