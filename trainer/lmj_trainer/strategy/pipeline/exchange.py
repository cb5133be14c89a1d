"""The sum of all replicas' gradients: each replica adds up some spans of the elements for all, in the tree's order, and sends the results.

That is a reduce-scatter and an all-gather by direct messages, with as many bytes as a ring where replicas divide the shards evenly. A span
is exchanged once all of it is final, while the gradients of others are computed. It runs over the view's transport: a replica that dies
breaks the view, and with it every exchange under way.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmj_api.shards import nodes, share
from lmj_trainer.state.finals import Finals
from lmj_trainer.strategy.pipeline.blocks import BLOCK, packed, unpack
from lmj_trainer.strategy.pipeline.tree import total
from lmj_trainer.transport.envelope import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmj_api.shards import Node
    from lmj_trainer.group.group import Group
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.strategy.pipeline.backward import Done
    from lmj_trainer.strategy.pipeline.blocks import Blocks
    from lmj_trainer.strategy.pipeline.sums import ShardSums

_LARGEST = 1 << 20
"""Elements of a span, at most,"""
_MOST = 512
"""but where a replica would add up more spans than this: an inbox has room for so many messages of each sender."""
_LEAST = 4
"""Spans that a replica adds up, at least, where there are elements enough: the first are exchanged while others are computed."""
_ALIGN = BLOCK


def span_size(elements: int, replicas: int) -> int:
    """Elements of a span, of ``elements`` that ``replicas`` share."""

    def cut(spans: int) -> int:
        return max(1, -(-elements // (spans * replicas * _ALIGN))) * _ALIGN

    return max(min(_LARGEST, cut(_LEAST)), cut(_MOST))


class Exchange:
    """That of one step, of one rank with those of the same stage in other replicas. It raises ViewBrokenError."""

    def __init__(
        self,
        group: Group,
        state: StageState,
        sums: ShardSums,
        step: int,
        final: Done | None = None,
        unfinished: Sequence[slice] = (),
    ) -> None:
        """``final``: as of :class:`~lmj_trainer.strategy.port.Strategy`. ``unfinished``: of the gradient, what changes after the exchange."""
        topology = group.topology
        me = topology.rank(group.rank)
        present = topology.present
        self._group, self._state, self._sums, self._step, self._final = group, state, sums, step, final
        self._unfinished = unfinished
        self._replicas, self._me = len(present), present.index(me.replica)
        self._ranks = list(topology.holders(me.stage))
        """By replica; those in the view are counted from 0 here."""
        self._others = [replica for replica in range(self._replicas) if replica != self._me]
        self._held = {replica: nodes(share(sums.shards, self._replicas, replica), sums.root) for replica in self._others}
        """The nodes that others have the sums of."""
        self._size = span_size(state.size, self._replicas)
        spans = [slice(start, min(start + self._size, state.size)) for start in range(0, state.size, self._size)]
        self._finals = Finals(state, spans)
        self._mine: deque[slice] = deque()
        """Spans that this rank adds up, once the others have sent theirs."""
        self._awaited: deque[slice] = deque()
        """Spans that others add up."""
        self.seconds = 0.0
        """What it took beside the backward pass. It does not depend on how many shards this replica computes."""

    def final(self, weight: Tensor) -> None:
        """Nothing will be added to the gradient of ``weight`` any more. Waits for nobody."""
        begin = time.monotonic()
        self._offer(self._finals.final(int(weight.storage_offset()), weight.numel()))
        self.seconds += time.monotonic() - begin

    def finish(self) -> None:
        """Nothing will be added to any gradient any more. The sums of all shards are in the state then."""
        self._offer(self._finals.rest())
        while self._mine:
            self._add_up(self._mine.popleft())
        while self._awaited:
            self._receive(self._awaited.popleft())

    @torch.no_grad()
    def _offer(self, spans: list[slice]) -> None:
        for span in spans:
            owner = self._number(span) % self._replicas
            if owner == self._me:
                self._mine.append(span)
                continue
            self._awaited.append(span)
            *waiting, last = self._sums.of(span).values()
            # A transport sends a whole storage as it is, and copies what is a part of one.
            sent = [
                *(packed(part) or (part.cpu() if part.is_cuda else part.clone()) for part in waiting),
                packed(last) or self._lent(span),
            ]
            self._group.send(self._ranks[owner], Kind.SUMS, self._step, self._number(span), sent)
        # What has arrived is not left until the end: it would be memory, and others wait for the results.
        while self._mine and all(self._there(Kind.SUMS, replica, self._mine[0]) for replica in self._others):
            self._add_up(self._mine.popleft())
        while self._awaited and self._there(Kind.SUM, self._number(self._awaited[0]) % self._replicas, self._awaited[0]):
            self._receive(self._awaited.popleft())

    def _number(self, span: slice) -> int:
        return int(span.start) // self._size

    def _there(self, kind: Kind, replica: int, span: slice) -> bool:
        return self._group.poll(kind, self._step, self._ranks[replica], self._number(span))

    @torch.no_grad()
    def _add_up(self, span: slice) -> None:
        number, gradient = self._number(span), self._state.gradient[span]
        parts: dict[Node, Tensor] = dict(self._sums.of(span))
        for replica in self._others:
            told = self._group.take(Kind.SUMS, self._step, self._ranks[replica], number)
            parts |= {node: self._whole(part, span) for node, part in zip(self._held[replica], told, strict=True)}
        if not self._others:
            self._tell(span)
            return
        total(parts, self._sums.root, gradient)
        self._tell(span)
        changes = any(other.start < span.stop and span.start < other.stop for other in self._unfinished)
        result = packed(gradient) or (gradient.clone().cpu() if changes else self._lent(span))
        # Each begins with another one, so that no rank is sent to by all at once.
        for replica in [*self._others[self._me :], *self._others[: self._me]]:
            self._group.send(self._ranks[replica], Kind.SUM, self._step, number, result)

    def _lent(self, span: slice) -> Tensor:
        """The gradient of ``span``, on the CPU as it lies there: it changes when all who are to have it do.

        What this rank adds to another one's sum is there when that sum comes back; a sum is with everybody when the step is committed. A rank
        that leaves the view before does not commit the step, so nobody does who got what changed on the way: it is prepared by all first.
        """
        return self._state.lent(span, 3)[0].cpu()

    def _whole(self, told: Tensor | Blocks, span: slice) -> Tensor:
        """What another replica told of ``span``, on this device."""
        gradient = self._state.gradient[span]
        return told.to(gradient.device) if isinstance(told, Tensor) else unpack(told, torch.empty_like(gradient))

    @torch.no_grad()
    def _receive(self, span: slice) -> None:
        number, gradient = self._number(span), self._state.gradient[span]
        told = self._group.take(Kind.SUM, self._step, self._ranks[number % self._replicas], number)
        if isinstance(told, Tensor):
            gradient.copy_(told)
        else:
            unpack(told, gradient)
        self._tell(span)

    def _tell(self, span: slice) -> None:
        """All of the sum of ``span`` is here."""
        if self._final is None:
            return
        for slot in self._state.slots:
            start = int(slot.weight.storage_offset())
            part = slice(max(start, span.start), min(start + slot.weight.numel(), span.stop))
            if part.start < part.stop:
                self._final(self._state.arrays(part, 0, 1)[0])
