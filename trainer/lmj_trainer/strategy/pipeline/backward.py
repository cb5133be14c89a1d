"""A backward pass cut in two; the only user of torch's private halves (torch 2.15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

Deferred = list[dict[str, Any]]
"""What the second half needs; it keeps the micro-batch's activations alive."""
Done = Callable[[Tensor], None]


def backward_input(
    output: Tensor, grad: Tensor | None, hidden: Tensor, weights: Sequence[nn.Parameter]
) -> tuple[Tensor, Deferred]:
    """First half: the gradient by ``hidden``. ``grad`` is the gradient by ``output``; None when ``output`` is the loss."""
    (result,), deferred = stage_backward_input([output], None if grad is None else [grad], [hidden], iter(weights))
    assert result is not None, "the output depends on the input"
    return result, deferred


def backward_weights(deferred: Deferred, weights: Sequence[nn.Parameter], done: Done | None = None) -> None:
    """Second half: adds the gradients by ``weights`` to their ``.grad``, in place. ``done`` is told of each when it has."""
    if done is None:
        stage_backward_weight(iter(weights), deferred)
        return
    for group in deferred:
        added = [node.variable for node in group["params"]]
        stage_backward_weight(iter(added), [group])
        for weight in added:
            done(weight)


def backward(output: Tensor, grad: Tensor | None, weights: Sequence[nn.Parameter], done: Done | None = None) -> None:
    """Both halves at once. ``done`` is told of each of ``weights`` when its gradient is added."""
    hooks = []
    if done is not None:
        hooks = [weight.register_post_accumulate_grad_hook(done) for weight in weights]  # type: ignore[no-untyped-call]
    try:
        torch.autograd.backward(output, grad)
    finally:
        for hook in hooks:
            hook.remove()
