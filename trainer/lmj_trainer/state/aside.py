"""What a group of tensors held before its update, copied aside in one pass over memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from lmj_trainer.state.stage_state import StageState

_RUN = 256
"""Elements of each array in turn: a core reads four streams side by side faster than one after the other."""


class Aside:
    """Room for one ``span`` of weights, moments and gradients. All groups of a state share it: it holds what was saved last."""

    def __init__(self, state: StageState, span: slice) -> None:
        runs, rest = divmod(span.stop - span.start, _RUN)
        self._values: list[Tensor] = []
        self._room: list[Tensor] = []
        for first, count, run in ((0, runs, _RUN), (runs * _RUN, 1, rest)):
            if count * run:
                shape = (count, 4, run)
                self._values.append(state.block.as_strided(shape, (run, state.size, 1), span.start + first))
                self._room.append(state.undo[4 * first : 4 * (first + count * run)].view(shape))

    def save(self) -> None:
        """Copy the values aside."""
        torch._foreach_copy_(self._room, self._values)

    def restore(self) -> None:
        """Copy them back."""
        torch._foreach_copy_(self._values, self._room)
