"""AdamW on a stage's state, one pass over memory a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lmj_api.spec import Training
    from lmj_trainer.state.stage_state import StageState

_CHUNK = 1 << 17  # elements: four arrays of it stay in a core's cache between clipping, updating and clearing


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


class AdamW:
    """``torch.optim.AdamW(fused=True)``'s arithmetic with clipping before and clearing after, chunk by chunk while it is in cache.

    AdamW is elementwise, so chunks give the same bits as whole tensors; a chunk's start is a multiple of every vector width.
    """

    def __init__(self, state: StageState, training: Training) -> None:
        self._state = state
        self._training = training
        self._count = torch.zeros((), dtype=torch.float32, device=state.block.device)
        large: list[tuple[bool, list[list[Tensor]]]] = []
        small: dict[bool, list[list[Tensor]]] = {True: [], False: []}
        for slot in state.slots:
            flat = [t.view(-1) for t in (slot.weight, slot.grad, slot.exp_avg, slot.exp_avg_sq)]
            if flat[0].numel() <= _CHUNK // 16:
                small[slot.decay].append(flat)
            else:
                large += [(slot.decay, [[t[i : i + _CHUNK] for t in flat]]) for i in range(0, flat[0].numel(), _CHUNK)]
        # Small tensors go together, one call for each kind: a call costs more than they do.
        self._groups = [(decay, tensors) for decay, tensors in [*large, *small.items()] if tensors]

    @torch.no_grad()
    def apply(self, coefficient: float, rate: float) -> None:
        """Take the next step with learning rate ``rate``; gradients are scaled by ``coefficient`` and are zero afterwards."""
        training = self._training
        self._count.fill_(self._state.step + 1)
        for decay, tensors in self._groups:
            weights, grads, first, second = ([t[k] for t in tensors] for k in range(4))
            if coefficient != 1.0:
                torch._foreach_mul_(grads, coefficient)
            torch._fused_adamw_(
                weights,
                grads,
                first,
                second,
                [],
                [self._count] * len(tensors),
                lr=rate,
                beta1=training.adam_beta1,
                beta2=training.adam_beta2,
                weight_decay=training.weight_decay if decay else 0.0,
                eps=training.adam_epsilon,
                amsgrad=False,
                maximize=False,
            )
            torch._foreach_zero_(grads)
        self._state.step += 1
