"""A table of tokens that is at both ends of the model: the first stage and the last one have a copy each, and a part of its gradient.

When the parts of all micro-batches and shards are in, both ends add the other's. Two numbers have the same sum either way round, so both
make the same update: the copies are equal after each step, and the same for every number of stages and replicas. A single stage has two
copies too: autograd would add their parts up in another order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmj_trainer.strategy.pipeline.blocks import packed, unpack
from lmj_trainer.transport.envelope import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from lmj_trainer.group.group import Group
    from lmj_trainer.state.stage_state import Slot, StageState
    from lmj_trainer.strategy.pipeline.backward import Done

_SPAN = 1 << 20
"""Elements of a message."""
_AHEAD = 8
"""Messages that are sent before the first answer is taken: each is a copy of its span."""


class Ends:
    """What one rank has of them: nothing, one end, or both."""

    def __init__(self, state: StageState, group: Group, tied: Mapping[str, str]) -> None:
        """``tied``: the names of copies on the last stage, with those of the first stage."""
        self._gradient, self._group = state.gradient, group
        slots = {slot.name: slot for slot in state.slots}
        self._last, self._first = (_spans(slots[name] for name in names if name in slots) for names in (tied, tied.values()))

    @property
    def spans(self) -> list[slice]:
        """Of the gradient, all of this rank's that :meth:`finish` changes."""
        return [*self._first, *self._last]

    def others(self, final: Done | None) -> Done | None:
        """``final``, told of all but the copies: their gradients are not what they will be before :meth:`finish`."""
        spans = self.spans
        if final is None or not spans:
            return final

        def tell(weight: Tensor) -> None:
            if not any(span.start <= weight.storage_offset() < span.stop for span in spans):
                final(weight)

        return tell

    @torch.no_grad()
    def finish(self, step: int) -> None:
        """All parts of this rank's gradients are in the state; then those of the other end are too. Raises ViewBrokenError."""
        if self._first and self._last:
            for first, last in zip(self._first, self._last, strict=True):
                self._gradient[last].copy_(self._gradient[first].add_(self._gradient[last]))
            return
        spans, topology = self._first or self._last, self._group.topology
        ranks = topology.ranks_of(topology.replica(self._group.rank))
        other = ranks[-1] if self._first else ranks[0]
        for number in range(min(_AHEAD, len(spans))):
            self._send(other, step, number, spans[number])
        for number, span in enumerate(spans):
            self._add(other, step, number, span)
            if number + _AHEAD < len(spans):
                self._send(other, step, number + _AHEAD, spans[number + _AHEAD])

    def _send(self, other: int, step: int, number: int, span: slice) -> None:
        part = self._gradient[span]
        self._group.send(other, Kind.TIED, step, number, packed(part) or (part.cpu() if part.is_cuda else part.clone()))

    def _add(self, other: int, step: int, number: int, span: slice) -> None:
        part, told = self._gradient[span], self._group.take(Kind.TIED, step, other, number)
        part.add_(told.to(part.device) if isinstance(told, torch.Tensor) else unpack(told, torch.empty_like(part)))


def _spans(slots: Iterable[Slot]) -> list[slice]:
    """Of the gradients of ``slots``."""
    spans: list[slice] = []
    for slot in slots:
        start, stop = int(slot.weight.storage_offset()), int(slot.weight.storage_offset()) + slot.weight.numel()
        spans += [slice(begin, min(begin + _SPAN, stop)) for begin in range(start, stop, _SPAN)]
    return spans
