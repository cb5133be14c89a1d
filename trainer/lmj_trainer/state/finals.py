"""Which spans of the gradients are final before the whole step is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmj_trainer.state.stage_state import StageState


class Finals:
    """Of one step: spans of the array, each given out once, as soon as all of it is final."""

    def __init__(self, state: StageState, end: int, part: int) -> None:
        """``end``: the element from which on nobody needs gradients of this step. ``part``: elements of a span, at most."""
        self._end, self._part = end, part
        self._spans = [slice(start, min(start + part, end)) for start in range(0, end, part)]
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
        part, stop = self._part, min(start + count, self._end)
        if stop <= start:
            return range(0)
        there = range(start // part, -(-stop // part))
        for i in there:
            self._missing[i] += sign * (min(stop, (i + 1) * part) - max(start, i * part))
        return there

    def _give(self, spans: list[int]) -> list[slice]:
        for i in spans:
            self._out[i] = True
        return [self._spans[i] for i in spans]
