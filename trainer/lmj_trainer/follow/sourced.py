"""What one source brings of the state, and how far that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmj_trainer.state.share import Share, Translation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from lmj_trainer.state.optimizer import Optimizer
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.transport.feed import Offer
    from lmj_trainer.transport.parts import Begin, Gradients


def problem_of(begin: Begin, state: StageState) -> str | None:
    """Why what ``begin`` brings is not of this memory; None: it is."""
    mine = {each.name: each.shape for each in state.placed()}
    frozen = all(state.frozen.get(name, digest) == digest for name, digest in begin.frozen.items())
    there = bool(begin.placed) and all(mine.get(p.name) == p.shape for p in begin.placed)
    if begin.identity != state.identity or not frozen or not there:
        return "the follower's memory has another layout: it is not of the same job, stage or version"
    return None


class Sourced:
    """One stream. It is of a step of its own until all that are followed are in sync."""

    def __init__(self, offer: Offer, state: StageState, optimizer: Optimizer) -> None:
        self.stream, self.sender = offer.stream, offer.begin.sender
        self.names = offer.begin.names
        self.step = state.step
        """The step of what is there; -1: nothing is."""
        self.in_sync = False
        """It was compared with what its source has."""
        self.prepared = self.promised = False
        """All of its gradients of the next step are there; and its source may take that step on this worker's word."""
        self._state, self._optimizer = state, optimizer
        self._share = Share(offer.begin.placed)
        self._here = Translation(self._share.placed, state.placed())
        slots = {slot.name: slot for slot in state.slots}
        self._units = optimizer.units((slots[p.name], span) for p in self._share.placed for _, span in p.units)
        """Until the whole block changes at once."""
        self.there = len(self._share.units) if self.step >= 0 else 0
        """Units that are there."""

    @property
    def complete(self) -> bool:
        """Whether all units are there."""
        return self.there == len(self._share.units)

    def become_whole(self) -> None:
        """What is here is a part of one state from now on."""
        self._units = []

    def take(self, first: int, last: int, step: int, values: Sequence[Tensor]) -> None:
        """The units ``first`` to ``last`` of ``step``."""
        if first == 0:
            self.there, self.in_sync = 0, False
            self.forget_gradients()
        if first != self.there:
            raise RuntimeError(f"units from {first} on came after unit {self.there}")
        span = slice(self._share.units[first].start, self._share.units[last - 1].stop)
        for here, part in self._here.here(span):
            for own, value in zip(self._state.arrays(here, 0, 3), values, strict=True):
                own.copy_(value[part])
        self.there, self.step = last, step

    def take_gradients(self, body: Gradients) -> None:
        """Some of the next step's."""
        self.prepared = self.promised = False
        pieces = self._here.here(body.span)
        if len(pieces) == 1:
            body.write(self._state.arrays(pieces[0][0], 3)[0])
            return
        whole = torch.empty(body.count)
        body.write(whole)
        for here, part in pieces:
            self._state.arrays(here, 3)[0].copy_(whole[part])

    def apply(self, step: int, coefficient: float, rate: float) -> None:
        """Take ``step`` with what is there."""
        self._optimizer.apply_to(self._units[: self.there], step, coefficient, rate)
        self.taken(step)

    def taken(self, step: int) -> None:
        """What is there is of ``step`` now."""
        self.step, self.prepared, self.promised = step, False, False

    def forget_gradients(self) -> None:
        """Drop those of a step that the source may do again."""
        for run in self._share.runs:
            for here, _ in self._here.here(run):
                self._state.arrays(here, 3)[0].zero_()
        self.prepared = self.promised = False

    def digest(self) -> str:
        """Of what is there, as its source makes it."""
        return self._state.digest([here for run in self._share.runs for here, _ in self._here.here(run)])
