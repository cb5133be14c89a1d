"""The state of one stage: weights, the optimizer's moments and gradients, in one block of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmj_trainer.model.stage import Stage

_ALIGN = 16  # elements: a cache line, so that no two tensors share one


@dataclass(frozen=True)
class Slot:
    """One parameter: views into the block, all of its shape, float32."""

    name: str
    decay: bool
    """Whether weight decay applies: not to biases and layer norms."""
    weight: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    grad: Tensor


class StageState:
    """Everything that changes in training, after ``step`` committed steps.

    One block: weights, first moments, second moments, gradients, each in the model's order. A snapshot is one copy of the first three;
    the model's parameters and their ``.grad`` are views of it, for good.
    """

    def __init__(self, stage: Stage, device: torch.device) -> None:
        named = stage.parameters_by_name()
        norms = {f"{n}.{k}" for n, m in stage.modules_by_name() if isinstance(m, torch.nn.LayerNorm) for k in ("weight", "bias")}
        offsets, size = [], 0
        for _, parameter in named:
            offsets.append(size)
            size += -(-parameter.numel() // _ALIGN) * _ALIGN
        self.size = size
        self.block = torch.zeros(4 * size, dtype=torch.float32, device=device)
        self.slots: list[Slot] = []
        self.step = -1
        """Committed steps; -1: the block holds nothing yet."""
        for (name, parameter), offset in zip(named, offsets, strict=True):
            # Not slices: those share one version counter, and autograd would take a changed gradient for a changed weight.
            views = [self._tensor(k * size + offset, parameter.shape) for k in range(4)]
            slot = Slot(name, name not in norms and not name.endswith(".bias"), *views)
            self.slots.append(slot)
            module, _, key = name.rpartition(".")
            fresh = torch.nn.Parameter(slot.weight)
            fresh.grad = slot.grad
            setattr(stage.model.get_submodule(module), key, fresh)
        stage.materialise(device)

    def _tensor(self, offset: int, shape: torch.Size) -> Tensor:
        view = torch.empty(0, dtype=torch.float32, device=self.block.device)
        view.set_(self.block.untyped_storage(), offset, shape, torch.empty(shape, device="meta").stride())
        return view

    @property
    def saved(self) -> Tensor:
        """Weights and moments, flat: what a checkpoint holds."""
        return self.block[: 3 * self.size]

    def tensors(self, block: Tensor | None = None) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of a checkpoint, in the order of memory: of this state, or of ``block``, a copy of :attr:`saved`."""
        for k, prefix in enumerate(("", "exp_avg/", "exp_avg_sq/")):
            for slot in self.slots:
                own = (slot.weight, slot.exp_avg, slot.exp_avg_sq)[k]
                if block is None:
                    yield prefix + slot.name, own
                else:
                    start = own.storage_offset()
                    yield prefix + slot.name, block[start : start + own.numel()].view(own.shape)

    def forget_gradients(self) -> None:
        """Drop the gradients of a step that was not committed."""
        self.block[3 * self.size :].zero_()
