"""GPT-2, and Llama and its kin: a token sees those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmj_trainer.model.families.family import Family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PretrainedConfig

    from lmj_trainer.model.families.family import Arguments
    from lmj_trainer.model.inputs import Inputs


def _positions(hidden: Tensor) -> Tensor:
    """``[1, t]``: padding is behind a row's tokens, so these count from its first one."""
    import torch

    return torch.arange(hidden.shape[1], device=hidden.device)[None]


def _llama(modules: Mapping[str, Any], config: PretrainedConfig, hidden: Tensor, inputs: Inputs) -> Arguments:
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

    positions = _positions(hidden)
    common = {"position_ids": positions, "position_embeddings": modules["model.rotary_emb"](hidden, position_ids=positions)}
    sliding = getattr(config, "sliding_window", None)
    # Qwen says of each layer what it sees; of the others all see the same.
    kinds = (
        getattr(config, "layer_types", None) or ["sliding_attention" if sliding else "full_attention"] * config.num_hidden_layers
    )
    makers = {"full_attention": create_causal_mask, "sliding_attention": create_sliding_window_causal_mask}
    masks = {
        kind: makers[kind](config, hidden, inputs.attention_mask, past_key_values=None, position_ids=positions)
        for kind in set(kinds)
    }
    return lambda layer: {**common, "attention_mask": masks[kinds[layer]]}


def _gpt2(modules: Mapping[str, Any], config: PretrainedConfig, hidden: Tensor, inputs: Inputs) -> Arguments:
    from transformers.masking_utils import create_causal_mask

    positions = _positions(hidden)
    mask = create_causal_mask(config, hidden, inputs.attention_mask, past_key_values=None, position_ids=positions)
    arguments = {"position_ids": positions, "attention_mask": mask}
    return lambda layer: arguments


def _llama_embed(modules: Mapping[str, Any], inputs: Inputs) -> Tensor:
    return modules["model.embed_tokens"](inputs.input_ids)  # type: ignore[no-any-return]


def _gpt2_embed(modules: Mapping[str, Any], inputs: Inputs) -> Tensor:
    hidden = modules["transformer.wte"](inputs.input_ids)
    return modules["transformer.drop"](hidden + modules["transformer.wpe"](_positions(hidden)))  # type: ignore[no-any-return]


LLAMA = Family(
    base="model",
    embeddings=("model.embed_tokens",),
    layers="model.layers",
    linear=(
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ),
    adapted=("self_attn.q_proj", "self_attn.v_proj"),
    embed=_llama_embed,
    arguments=_llama,
    final=("model.norm",),
    causal=True,
    constant=("model.rotary_emb",),
)
"""And Mistral and Qwen2, whose modules have the same names."""

GPT2 = Family(
    base="transformer",
    embeddings=("transformer.wte", "transformer.wpe"),
    layers="transformer.h",
    linear=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
    adapted=("attn.c_attn",),
    embed=_gpt2_embed,
    arguments=_gpt2,
    final=("transformer.ln_f",),
    drawn=(".c_proj",),
    causal=True,
)
