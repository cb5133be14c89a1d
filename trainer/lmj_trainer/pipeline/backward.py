"""A backward pass cut in two; the only user of torch's private halves (torch 2.15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

Deferred = list[dict[str, Any]]
"""What the second half needs; it keeps the micro-batch's activations alive."""


def backward_input(
    output: Tensor, grad: Tensor | None, hidden: Tensor, weights: Sequence[nn.Parameter]
) -> tuple[Tensor, Deferred]:
    """First half: the gradient by ``hidden``. ``grad`` is the gradient by ``output``; None when ``output`` is the loss."""
    (result,), deferred = stage_backward_input([output], None if grad is None else [grad], [hidden], iter(weights))
    assert result is not None, "the output depends on the input"
    return result, deferred


def backward_weights(deferred: Deferred, weights: Sequence[nn.Parameter]) -> None:
    """Second half: adds the gradients by ``weights`` to their ``.grad``, in place."""
    stage_backward_weight(iter(weights), deferred)
