"""Which spans of the gradients are final before the whole step is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmj_trainer.state.stage_state import StageState


class Finals:
    """Of one step: spans of the array, each given out once, as soon as all of it is final."""

    def __init__(self, state: StageState, spans: Sequence[slice]) -> None:
        """``spans``: what somebody needs of this step's gradients, in order, and none over another."""
        self._spans = list(spans)
        self._starts, self._stops = [span.start for span in spans], [span.stop for span in spans]
        self._missing = [0] * len(self._spans)
        for slot in state.slots:
            self._over(int(slot.weight.storage_offset()), slot.weight.numel(), +1)
        self._out = [False] * len(self._spans)

    def final(self, start: int, count: int) -> list[slice]:
        """``count`` elements of a tensor at ``start`` are final: the spans that are complete by it."""
        spans = [i for i in self._over(start, count, -1) if self._missing[i] == 0 and not self._out[i]]
        return self._give(spans)

    def rest(self) -> list[slice]:
        """Everything is final: what was not given out."""
        return self._give([i for i, out in enumerate(self._out) if not out])

    def _over(self, start: int, count: int, sign: int) -> range:
        """Add the elements of ``[start, start + count)`` to what is missing of each span, or take them off."""
        stop = start + count
        there = range(bisect_right(self._stops, start), bisect_left(self._starts, stop))
        for i in there:
            self._missing[i] += sign * (min(stop, self._stops[i]) - max(start, self._starts[i]))
        return there

    def _give(self, spans: list[int]) -> list[slice]:
        for i in spans:
            self._out[i] = True
        return [self._spans[i] for i in spans]
