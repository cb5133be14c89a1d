"""From hidden states to a score for each token of the vocabulary, by way of a layer as wide as the table of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmj_trainer.model.head import Head, Heads

if TYPE_CHECKING:
    from torch import Tensor

    from lmj_trainer.model.inputs import Inputs


def _bert(model: Any, hidden: Tensor, inputs: Inputs) -> Tensor:
    return model.cls(hidden)  # type: ignore[no-any-return]


def _roberta(model: Any, hidden: Tensor, inputs: Inputs) -> Tensor:
    return model.lm_head(hidden)  # type: ignore[no-any-return]


def _electra(model: Any, hidden: Tensor, inputs: Inputs) -> Tensor:
    return model.generator_lm_head(model.generator_predictions(hidden))  # type: ignore[no-any-return]


def _distilbert(model: Any, hidden: Tensor, inputs: Inputs) -> Tensor:
    hidden = model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
    return model.vocab_projector(hidden)  # type: ignore[no-any-return]


HEADS = Heads(
    auto="AutoModelForMaskedLM",
    # Adapters alone are trained: the head is a part of the language model.
    adapters="FEATURE_EXTRACTION",
    problem_type=None,
    dense=1,
    by_family={
        "bert": Head(("cls",), _bert, "cls.predictions.decoder"),
        "roberta": Head(("lm_head",), _roberta, "lm_head.decoder"),
        "electra": Head(("generator_predictions", "generator_lm_head"), _electra, "generator_lm_head"),
        "distilbert": Head(("vocab_transform", "vocab_layer_norm", "vocab_projector"), _distilbert, "vocab_projector"),
    },
    vocabulary=True,
)
