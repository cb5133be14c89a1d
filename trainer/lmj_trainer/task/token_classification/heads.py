"""The classifiers of tokens: one layer in all families."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmj_trainer.model.head import Head, Heads

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lmj_trainer.model.inputs import Inputs


def _classifier(model: nn.Module, hidden: Tensor, inputs: Inputs) -> Tensor:
    return model.classifier(model.dropout(hidden))  # type: ignore[no-any-return,operator]


def _score(model: nn.Module, hidden: Tensor, inputs: Inputs) -> Tensor:
    return model.score(model.dropout(hidden))  # type: ignore[no-any-return,operator]


_CLASSIFIER, _SCORE = Head(("classifier",), _classifier), Head(("score",), _score)

HEADS = Heads(
    auto="AutoModelForTokenClassification",
    adapters="TOKEN_CLS",
    problem_type=None,
    dense=0,
    by_family={
        **dict.fromkeys(("bert", "distilbert", "roberta", "electra", "gpt2"), _CLASSIFIER),
        **dict.fromkeys(("llama", "mistral", "qwen2"), _SCORE),
    },
)
