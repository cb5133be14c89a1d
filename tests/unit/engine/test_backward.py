"""A backward pass in two halves, or in one, reports each weight when its gradient is what it will be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lmj_trainer.strategy.pipeline.backward import backward, backward_input, backward_weights


class Block(nn.Module):
    """As a layer: a tensor that is used twice, a norm, and a weight that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.unused = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.norm(hidden + self.second(torch.tanh(self.first(hidden))))
        return out


def gradients(model: nn.Module, *, cut: bool, told: list[Tensor] | None) -> list[Tensor | None]:
    weights = list(model.parameters())
    for weight in weights:
        weight.grad = None
    done = None
    if told is not None:

        def done(weight: Tensor) -> None:
            assert weight.grad is not None
            told.append(weight)
            snapshots[id(weight)] = weight.grad.clone()

    snapshots: dict[int, Tensor] = {}
    for part in range(2):
        torch.manual_seed(part)
        hidden = torch.randn(4, 8, requires_grad=True)
        output = model(hidden).square().sum()
        last = done if part == 1 else None
        if cut:
            _, deferred = backward_input(output, None, hidden, weights)
            backward_weights(deferred, weights, last)
        else:
            backward(output, None, weights, last)
    for weight in told or []:
        assert torch.equal(snapshots[id(weight)], weight.grad)  # type: ignore[arg-type]
    return [weight.grad for weight in weights]


@pytest.mark.parametrize("cut", [True, False])
def test_each_weight_is_told_once_with_the_same_bits(cut: bool) -> None:
    torch.manual_seed(7)
    model = nn.Sequential(Block(), Block())
    plain = gradients(model, cut=cut, told=None)
    told: list[Tensor] = []
    both = gradients(model, cut=cut, told=told)
    for one, two in zip(plain, both, strict=True):
        assert (one is None) == (two is None)
        assert one is None or two is None or torch.equal(one, two)
    used = [weight for name, weight in model.named_parameters() if "unused" not in name]
    assert len(told) == len(used)
    assert {id(weight) for weight in told} == {id(weight) for weight in used}
