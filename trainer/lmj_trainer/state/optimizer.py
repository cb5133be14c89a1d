"""AdamW or SGD on a stage's state, one pass over memory a step, that can be broken off anywhere and gone on with by another process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmj_api.spec import Optimizer as Name
from lmj_trainer.state.loss_scale import SKIP
from lmj_trainer.state.stage_state import Group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmj_api.spec import Training
    from lmj_trainer.state.stage_state import Slot, StageState


def gradient_norms(state: StageState) -> Tensor:
    """The 2-norm of each parameter's gradient, float32 ``[parameters]``, on the CPU: as ``torch.nn.utils.clip_grad_norm_`` takes them.

    What is at both ends of the model counts once.
    """
    grads = [slot.grad for slot in state.slots if slot.copy_of is None]
    with torch.no_grad():
        if grads[0].is_cuda:
            return torch.stack(list(torch._foreach_norm(grads))).cpu()
        return torch.stack([torch.linalg.vector_norm(grad) for grad in grads])


def total_norm(norms: Tensor, scale: float = 1.0) -> Tensor:
    """The norm of the whole gradient from all parameters' norms in the model's order: the same bits for every number of stages.

    ``scale``: a power of two that losses were multiplied by.
    """
    norm: Tensor = torch.linalg.vector_norm(norms / scale)
    return norm


def clip_coefficient(total: Tensor, limit: float | None) -> float:
    """What gradients are multiplied by, float32: 1 without a limit or within it."""
    if limit is None:
        return 1.0
    return float(torch.clamp(limit / (total + 1e-6), max=1.0))


@dataclass(frozen=True)
class Unit:
    """The tensors of what changes at once, flat."""

    decay: bool
    weights: list[Tensor]
    grads: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    clipped: list[Tensor]
    """Room for the clipped gradients. On a GPU it is that of the gradients: nobody makes the update again there."""
    changing: list[Tensor]
    """Weights and moments, the whole span, where the update may have to be undone."""
    undo: list[Tensor]
    """Room for their values before; as many."""
    gradient: Tensor
    """Gradients, the whole span."""


class Optimizer(ABC):
    """The arithmetic of torch's fused optimizers with clipping before and clearing after, chunk by chunk while it is in cache.

    It is elementwise, so chunks give the same bits as whole tensors; a chunk's start is a multiple of every vector width. Before a
    group of tensors changes its values are copied aside, and the ledger says how many groups are done: so a process that maps the
    state of one that was killed within a step restores the group in work and finishes the rest. A GPU's memory is nobody else's: there
    nothing is copied aside.
    """

    def __init__(self, state: StageState, training: Training) -> None:
        self._state = state
        self._training = training
        self.seconds = 0.0
        """How long the newest update of a whole block took."""
        self.taken: float | None = None
        """When it was complete, on the monotonic clock; None: this process made none."""
        self._count = torch.zeros((), dtype=torch.float32, device=state.block.device)
        self._groups = [_tensors(state, group) for group in state.groups]

    @torch.no_grad()
    def apply(self) -> None:
        """Take the step that was committed, if it is not taken yet, from wherever it was left; gradients are zero afterwards."""
        state = self._state
        if state.committed is None or state.committed[0] == state.step:
            return
        begun = time.monotonic()
        step, coefficient, rate = state.committed
        if state.done:
            self._groups[state.done - 1].gradient.zero_()
        for index in range(state.done, len(self._groups)):
            group = self._groups[index]
            if group.undo and state.saved_group == index:
                torch._foreach_copy_(group.changing, group.undo)
            elif group.undo:
                torch._foreach_copy_(group.undo, group.changing)
                state.saved_group = index
            self._update(group, step, coefficient, rate)
            # The gradients are what the update can be made from again, so they go when it is done.
            state.done = index + 1
            group.gradient.zero_()
        state.take_step()
        self.taken = time.monotonic()
        self.seconds = self.taken - begun

    def units(self, spans: Iterable[tuple[Slot, slice]]) -> list[Unit]:
        """These spans of parameters, for :meth:`apply_to`."""
        made = []
        for slot, span in spans:
            first = int(slot.weight.storage_offset())
            group = Group(slice(first + span.start, first + span.stop), slot.decay, [(slot, span)])
            made.append(_tensors(self._state, group, undone=False))
        return made

    @torch.no_grad()
    def apply_to(self, units: Iterable[Unit], step: int, coefficient: float, rate: float) -> None:
        """Take ``step`` with ``units`` of a block that is not complete: when this is broken off it is worth nothing."""
        for unit in units:
            self._update(unit, step, coefficient, rate)
            unit.gradient.zero_()

    def _update(self, group: Unit, step: int, coefficient: float, rate: float) -> None:
        if coefficient == SKIP:
            return
        if coefficient != 1.0:
            _clip(group, coefficient)
        scale = self._state.loss_scale
        updates = step if scale is None else step - scale.skipped
        self._change(group, group.grads if coefficient == 1.0 else group.clipped, updates, rate)

    @abstractmethod
    def _change(self, group: Unit, grads: list[Tensor], update: int, rate: float) -> None:
        """Make ``update``, counted from 1, with clipped ``grads``, which stay as they are."""


class AdamW(Optimizer):
    """``torch.optim.AdamW(fused=True)``."""

    def _change(self, group: Unit, grads: list[Tensor], update: int, rate: float) -> None:
        training = self._training
        self._count.fill_(update)
        torch._fused_adamw_(
            group.weights,
            grads,
            group.first,
            group.second,
            [],
            [self._count] * len(group.weights),
            lr=rate,
            beta1=training.adam_beta1,
            beta2=training.adam_beta2,
            weight_decay=training.weight_decay if group.decay else 0.0,
            eps=training.adam_epsilon,
            amsgrad=False,
            maximize=False,
        )


class SGD(Optimizer):
    """``torch.optim.SGD(fused=True)``. Momentum is where AdamW has the first moments; the second ones stay zero."""

    def _change(self, group: Unit, grads: list[Tensor], update: int, rate: float) -> None:
        training = self._training
        torch._fused_sgd_(
            group.weights,
            grads,
            group.first if training.momentum else [],
            weight_decay=training.weight_decay if group.decay else 0.0,
            momentum=training.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=update == 1,
        )


_KINDS: dict[Name, type[Optimizer]] = {Name.ADAMW: AdamW, Name.SGD: SGD}


def optimizer_of(state: StageState, training: Training) -> Optimizer:
    """The one that ``training`` names."""
    return _KINDS[training.optimizer](state, training)


def _clip(group: Unit, coefficient: float) -> None:
    if group.clipped is group.grads:
        torch._foreach_mul_(group.grads, coefficient)
        return
    for grad, clipped in zip(group.grads, group.clipped, strict=True):
        torch.mul(grad, coefficient, out=clipped)


def _tensors(state: StageState, group: Group, *, undone: bool = True) -> Unit:
    """``undone``: its update is to be undone where it was broken off, if the state outlives the process."""

    def flat(name: str) -> list[Tensor]:
        return [getattr(slot, name).view(-1)[part] for slot, part in group.parts]

    weights, grads, first, second = flat("weight"), flat("grad"), flat("exp_avg"), flat("exp_avg_sq")
    *changing, gradient = state.arrays(group.span)
    if not state.chunk:
        return Unit(group.decay, weights, grads, first, second, grads, [], [], gradient)
    length = group.span.stop - group.span.start
    undo = [area[:length] for area in torch.split(state.undo, state.chunk)]
    starts = [slot.weight.storage_offset() + part.start - group.span.start for slot, part in group.parts]
    lengths = [part.stop - part.start for _, part in group.parts]
    clipped = [undo[3][start : start + count] for start, count in zip(starts, lengths, strict=True)]
    room = (changing, undo[:3]) if undone else ([], [])
    return Unit(group.decay, weights, grads, first, second, clipped, *room, gradient)
