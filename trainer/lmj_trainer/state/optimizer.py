"""AdamW on a stage's state, one pass over memory a step, that can be broken off anywhere and gone on with by another process."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmj_trainer.state.stage_state import CHUNK

if TYPE_CHECKING:
    from lmj_api.spec import Training
    from lmj_trainer.state.stage_state import Slot, StageState


def gradient_norms(state: StageState) -> Tensor:
    """The 2-norm of each parameter's gradient, float32 ``[parameters]``, on the CPU: as ``torch.nn.utils.clip_grad_norm_`` takes them."""
    with torch.no_grad():
        return torch.stack([torch.linalg.vector_norm(slot.grad) for slot in state.slots]).cpu()


def total_norm(norms: Tensor) -> Tensor:
    """The norm of the whole gradient from all parameters' norms in the model's order: the same bits for every number of stages."""
    norm: Tensor = torch.linalg.vector_norm(norms)
    return norm


def clip_coefficient(total: Tensor, limit: float | None) -> float:
    """What gradients are multiplied by, float32: 1 without a limit or within it."""
    if limit is None:
        return 1.0
    return float(torch.clamp(limit / (total + 1e-6), max=1.0))


@dataclass(frozen=True)
class _Group:
    """Tensors that change at once, flat."""

    decay: bool
    weights: list[Tensor]
    grads: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    clipped: list[Tensor]
    """Room for the clipped gradients."""
    changing: list[Tensor]
    """Weights and moments."""
    undo: list[Tensor]
    """Room for their values before."""


class AdamW:
    """``torch.optim.AdamW(fused=True)``'s arithmetic with clipping before and clearing after, chunk by chunk while it is in cache.

    AdamW is elementwise, so chunks give the same bits as whole tensors; a chunk's start is a multiple of every vector width. Before a
    group of tensors changes its values are copied aside, and the ledger says how many groups are done: so a process that maps the
    state of one that was killed within a step restores the group in work and finishes the rest.
    """

    def __init__(self, state: StageState, training: Training) -> None:
        self._state = state
        self._training = training
        self._count = torch.zeros((), dtype=torch.float32, device=state.block.device)
        self._groups = [_group(state, decay, parts) for decay, parts in _cut(state.slots)]

    @torch.no_grad()
    def apply(self) -> None:
        """Take the step that was committed, if it is not taken yet, from wherever it was left; gradients are zero afterwards."""
        state, training = self._state, self._training
        if state.committed is None or state.committed[0] == state.step:
            return
        step, coefficient, rate = state.committed
        self._count.fill_(step)
        if state.done:
            torch._foreach_zero_(self._groups[state.done - 1].grads)
        for index in range(state.done, len(self._groups)):
            group = self._groups[index]
            if state.saved_group == index:
                torch._foreach_copy_(group.changing, group.undo)
            else:
                torch._foreach_copy_(group.undo, group.changing)
                state.saved_group = index
            if coefficient != 1.0:
                for grad, clipped in zip(group.grads, group.clipped, strict=True):
                    torch.mul(grad, coefficient, out=clipped)
            torch._fused_adamw_(
                group.weights,
                group.grads if coefficient == 1.0 else group.clipped,
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
            # The gradients are what the update can be made from again, so they go when it is done.
            state.done = index + 1
            torch._foreach_zero_(group.grads)
        state.take_step()


def _cut(slots: list[Slot]) -> list[tuple[bool, list[tuple[Slot, slice]]]]:
    """The groups, each with its decay and the parts of slots, of at most CHUNK elements together: it fits in the undo area.

    Small tensors go together, one call for each kind: a call costs more than they do.
    """
    large: list[tuple[bool, list[tuple[Slot, slice]]]] = []
    small: list[tuple[bool, list[tuple[Slot, slice]]]] = []
    for decay in (True, False):
        left = 0
        for slot in slots:
            count = slot.weight.numel()
            if slot.decay is not decay:
                continue
            if count > CHUNK // 16:
                large += [(decay, [(slot, slice(i, min(i + CHUNK, count)))]) for i in range(0, count, CHUNK)]
                continue
            if count > left:
                small.append((decay, []))
                left = CHUNK
            small[-1][1].append((slot, slice(0, count)))
            left -= count
    return large + small


def _group(state: StageState, decay: bool, parts: list[tuple[Slot, slice]]) -> _Group:
    def flat(name: str) -> list[Tensor]:
        return [getattr(slot, name).view(-1)[part] for slot, part in parts]

    weights, grads, first, second = flat("weight"), flat("grad"), flat("exp_avg"), flat("exp_avg_sq")
    changing = [*weights, *first, *second]
    room = torch.split(state.undo, CHUNK)
    undo = [part for area, tensors in zip(room[:3], (weights, first, second), strict=True) for part in _like(area, tensors)]
    return _Group(decay, weights, grads, first, second, _like(room[3], grads), changing, undo)


def _like(area: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Parts of ``area`` as long as ``tensors``."""
    ends = accumulate(tensor.numel() for tensor in tensors)
    return [area[end - tensor.numel() : end] for tensor, end in zip(tensors, ends, strict=True)]
