"""From hidden states to a score for each token of the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmj_trainer.model.head import Head, Heads

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lmj_trainer.model.inputs import Inputs


def _language(model: nn.Module, hidden: Tensor, inputs: Inputs) -> Tensor:
    return model.lm_head(hidden)  # type: ignore[no-any-return,operator]


HEADS = Heads(
    auto="AutoModelForCausalLM",
    adapters="CAUSAL_LM",
    problem_type=None,
    dense=0,
    by_family=dict.fromkeys(("gpt2", "llama", "mistral", "qwen2"), Head(("lm_head",), _language, "lm_head")),
    vocabulary=True,
)
