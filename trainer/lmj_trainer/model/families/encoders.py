"""BERT and its kin: every token sees every other. Only names differ between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmj_trainer.model.families.family import Family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PretrainedConfig

    from lmj_trainer.model.families.family import Arguments
    from lmj_trainer.model.inputs import Inputs


def _arguments(modules: Mapping[str, Any], config: PretrainedConfig, hidden: Tensor, inputs: Inputs) -> Arguments:
    from transformers.masking_utils import create_bidirectional_mask

    arguments = {"attention_mask": create_bidirectional_mask(config, hidden, inputs.attention_mask)}
    return lambda layer: arguments


def _family(base: str, layers: str, linear: tuple[str, ...], *more: str) -> Family:
    """``more``: modules after the embeddings, where a model has them."""
    paths = (f"{base}.embeddings", *(f"{base}.{name}" for name in more))

    def embed(modules: Mapping[str, Any], inputs: Inputs) -> Tensor:
        first, *others = (modules[path] for path in paths if path in modules)
        kinds = {} if inputs.token_type_ids is None else {"token_type_ids": inputs.token_type_ids}
        hidden: Tensor = first(input_ids=inputs.input_ids, **kinds)
        for module in others:
            hidden = module(hidden)
        return hidden

    # Queries and values, as peft and the paper have it.
    return Family(base, paths, f"{base}.{layers}", linear, (linear[0], linear[2]), embed, _arguments)


_LINEAR = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)

BERT = _family("bert", "encoder.layer", _LINEAR)
ROBERTA = _family("roberta", "encoder.layer", _LINEAR)
ELECTRA = _family("electra", "encoder.layer", _LINEAR, "embeddings_project")
DISTILBERT = _family(
    "distilbert",
    "transformer.layer",
    ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "ffn.lin1", "ffn.lin2"),
)
