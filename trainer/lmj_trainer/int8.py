"""Models whose linear layers are kept in 8 bits: how they are written, read, and compute on a CPU.

The format is that of compressed-tensors (weights a scale for each row, activations a scale for each token), which transformers and others read.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SCALE = ".weight_scale"
"""After the name of a layer: a positive float32 for each row of its weight, ``[rows, 1]``."""
_MOST = 127
"""Whole numbers go from -127 to 127: -128 has no opposite."""
_LEAST = torch.finfo(torch.float32).tiny

_WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
_ACTIVATIONS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
_SCHEME: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _WEIGHTS, "input_activations": _ACTIVATIONS}},
}


def settings(left: list[str]) -> dict[str, Any]:
    """``quantization_config`` of ``config.json``. ``left``: linear layers that stay as they are."""
    return {**_SCHEME, "ignore": left}


def is_int8(config: PretrainedConfig) -> bool:
    """Whether the model of ``config`` is one that was written here."""
    found = getattr(config, "quantization_config", None)
    return isinstance(found, dict) and {**found, "ignore": []} == settings([])


def linear_layers(model: Any) -> tuple[list[str], list[str]]:
    """Names of the linear layers of ``model``, one of transformers: those that are kept in 8 bits, and those that stay.

    What stands on the encoder or decoder stays, as the table of tokens does: they are small, or have many rows of which few are used, and
    what a model answers depends on them most.
    """
    inner = {id(module) for module in model.base_model.modules()}
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    kept: list[str] = []
    left: list[str] = []
    for name, module in model.named_modules():
        if type(module) is nn.Linear:
            (kept if id(module) in inner and owners[id(module.weight)] == 1 else left).append(name)
    return kept, left


def quantized(values: Tensor) -> tuple[Tensor, Tensor]:
    """``values`` ``[rows, n]``, float → whole numbers ``[rows, n]``, int8, and their scales ``[rows, 1]``, float32.

    Each row's largest number becomes 127 or -127; the error of each is at most half a scale.
    """
    values = values.float()
    scales = values.abs().amax(1, keepdim=True).clamp_min(_LEAST * _MOST) / _MOST
    return (values / scales).round_().to(torch.int8), scales


class Int8Linear(nn.Module):
    """A linear layer that multiplies whole numbers. What it gives for a token is the same whatever else is in the batch."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """``weight``: ``[out, in]``, int8; ``scale``: ``[out, 1]``, float32; ``bias``: ``[out]``, float32."""
        super().__init__()
        self.weight: Tensor
        self.weight_scale: Tensor
        self.register_buffer("weight", weight.contiguous())
        self.register_buffer("weight_scale", scale)
        self.bias = bias

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., in]`` → ``[..., out]``, float32."""
        rows, scales = quantized(hidden.reshape(-1, hidden.shape[-1]))
        # Sums of products are int32 without an overflow below 2^31 / 127^2 = 133,144 inputs.
        result = torch._int_mm(rows, self.weight.t()).float().mul_(scales).mul_(self.weight_scale.t())
        if self.bias is not None:
            result += self.bias
        return result.reshape(*hidden.shape[:-1], -1)


def load_int8(folder: Path, config: Any, auto: str) -> Any:
    """The model in ``folder``, of the class ``auto`` of transformers, whose layers multiply whole numbers. ``config``: as it is there.

    Raises OSError, ValueError or RuntimeError, also where the file is not what it should be.
    """
    try:
        values = load_file(folder / "model.safetensors")
    except SafetensorError as error:
        raise ValueError(f"model.safetensors: {error}") from error
    names = [name.removesuffix(SCALE) for name in values if name.endswith(SCALE)]
    layers = {name: (values[f"{name}.weight"], values.pop(f"{name}{SCALE}")) for name in names if f"{name}.weight" in values}
    for name, (weight, scale) in layers.items():
        if weight.dtype != torch.int8 or scale.dtype != torch.float32 or scale.shape != (len(weight), 1):
            raise ValueError(f"{name} is no layer of 8 bits with a scale for each row")
        # Of the right shape, and without memory: the layer is about to be replaced.
        values[f"{name}.weight"] = torch.zeros(()).expand(weight.shape)
    if alone := [name for name, value in values.items() if not value.is_floating_point()]:
        raise ValueError(f"{alone[0]} has no scales")
    del config.quantization_config
    with torch.device("meta"):
        kind = type(getattr(transformers, auto).from_config(config, dtype=torch.float32))
    model, found = kind.from_pretrained(None, config=config, state_dict=values, dtype=torch.float32, output_loading_info=True)
    if strange := sorted([*found["missing_keys"], *found["unexpected_keys"], *found["mismatched_keys"]], key=str):
        raise ValueError(f"model.safetensors and config.json do not belong together ({strange[0]})")
    for name, (weight, scale) in layers.items():
        model.set_submodule(name, Int8Linear(weight, scale, model.get_submodule(name).bias))
    return model
