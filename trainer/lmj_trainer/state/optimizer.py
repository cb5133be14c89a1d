"""AdamW or SGD on a stage's state, one pass over memory a step, that can be broken off anywhere and gone on with by another process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmj_api.spec import Optimizer as Name
from lmj_trainer.state.aside import Aside
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
    gradient: Tensor
    """Gradients, the whole span."""
    aside: Aside | None
    """Room for what the whole span held before; None: the update need not be undone."""


@dataclass(frozen=True)
class _Update:
    """What is done with each group of tensors."""

    number: int
    """Counted from 1; steps whose update was left out do not count."""
    count: Tensor
    """``number``, a float32 scalar on the device of the state."""
    coefficient: float
    rate: float


class Optimizer(ABC):
    """The arithmetic of torch's fused optimizers with clipping before and clearing after, chunk by chunk while it is in cache.

    It is elementwise, so chunks give the same bits as whole tensors; a chunk's start is a multiple of every vector width. Before a
    group of tensors changes its values are copied aside, gradients included, and the ledger says how many groups are done: so a process
    that maps the state of one that was killed within a step restores the group in work and finishes the rest. A GPU's memory is nobody
    else's: there nothing is copied aside.
    """

    def __init__(self, state: StageState, training: Training) -> None:
        self._state = state
        self._training = training
        self.seconds = 0.0
        """How long the newest update of a whole block took."""
        self.taken: float | None = None
        """When it was complete, on the monotonic clock; None: this process made none."""
        self._groups = [_tensors(state, group) for group in state.groups]

    @torch.no_grad()
    def apply(self) -> None:
        """Take the step that was committed, if it is not taken yet, from wherever it was left; gradients are zero afterwards."""
        state = self._state
        if state.committed is None or state.committed[0] == state.step:
            return
        begun = time.monotonic()
        step, coefficient, rate = state.committed
        update = self._updated(step, coefficient, rate)
        if state.done:
            self._groups[state.done - 1].gradient.zero_()
        for index in range(state.done, len(self._groups)):
            group = self._groups[index]
            if update is not None:
                if group.aside is not None:
                    if state.saved_group == index:
                        group.aside.restore()
                    else:
                        group.aside.save()
                        state.saved_group = index
                self._apply(group, update)
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
        update = self._updated(step, coefficient, rate)
        for unit in units:
            if update is not None:
                self._apply(unit, update)
            unit.gradient.zero_()

    def _updated(self, step: int, coefficient: float, rate: float) -> _Update | None:
        """The update of ``step``; None: it is left out."""
        if coefficient == SKIP:
            return None
        scale = self._state.loss_scale
        number = step if scale is None else step - scale.skipped
        count = torch.full((), number, dtype=torch.float32, device=self._state.block.device)
        return _Update(number, count, coefficient, rate)

    def _apply(self, group: Unit, update: _Update) -> None:
        if update.coefficient != 1.0:
            torch._foreach_mul_(group.grads, update.coefficient)
        self._change(group, update)

    @abstractmethod
    def _change(self, group: Unit, update: _Update) -> None:
        """Make ``update`` with the gradients of ``group``, which are clipped already."""


class AdamW(Optimizer):
    """``torch.optim.AdamW(fused=True)``."""

    def _change(self, group: Unit, update: _Update) -> None:
        training = self._training
        torch._fused_adamw_(
            group.weights,
            group.grads,
            group.first,
            group.second,
            [],
            [update.count] * len(group.weights),
            lr=update.rate,
            beta1=training.adam_beta1,
            beta2=training.adam_beta2,
            weight_decay=training.weight_decay if group.decay else 0.0,
            eps=training.adam_epsilon,
            amsgrad=False,
            maximize=False,
        )


class SGD(Optimizer):
    """``torch.optim.SGD(fused=True)``. Momentum is where AdamW has the first moments; the second ones stay zero."""

    def _change(self, group: Unit, update: _Update) -> None:
        training = self._training
        torch._fused_sgd_(
            group.weights,
            group.grads,
            group.first if training.momentum else [],
            weight_decay=training.weight_decay if group.decay else 0.0,
            momentum=training.momentum,
            lr=update.rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=update.number == 1,
        )


_KINDS: dict[Name, type[Optimizer]] = {Name.ADAMW: AdamW, Name.SGD: SGD}


def optimizer_of(state: StageState, training: Training) -> Optimizer:
    """The one that ``training`` names."""
    return _KINDS[training.optimizer](state, training)


def _tensors(state: StageState, group: Group, *, undone: bool = True) -> Unit:
    """``undone``: its update is to be undone where it was broken off, if the state outlives the process."""

    def flat(name: str) -> list[Tensor]:
        return [getattr(slot, name).view(-1)[part] for slot, part in group.parts]

    weights, grads, first, second = flat("weight"), flat("grad"), flat("exp_avg"), flat("exp_avg_sq")
    (gradient,) = state.arrays(group.span, 3)
    aside = Aside(state, group.span) if undone and state.chunk else None
    return Unit(group.decay, weights, grads, first, second, gradient, aside)
