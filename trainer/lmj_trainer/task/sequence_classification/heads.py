"""The classifiers of texts: each family has its own way from hidden states to one vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmj_trainer.model.head import Head, Heads

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lmj_trainer.model.inputs import Inputs


def _bert(model: nn.Module, hidden: Tensor, inputs: Inputs) -> Tensor:
    return model.classifier(model.dropout(model.bert.pooler(hidden)))  # type: ignore[no-any-return,operator,union-attr]


def _classifier(model: nn.Module, hidden: Tensor, inputs: Inputs) -> Tensor:
    return model.classifier(hidden)  # type: ignore[no-any-return,operator]


def _distilbert(model: nn.Module, hidden: Tensor, inputs: Inputs) -> Tensor:
    pooled = model.pre_classifier(hidden[:, 0]).relu()  # type: ignore[operator]
    return model.classifier(model.dropout(pooled))  # type: ignore[no-any-return,operator]


def _score(model: nn.Module, hidden: Tensor, inputs: Inputs) -> Tensor:
    # A decoder's last token is the one that has seen all others.
    last = inputs.attention_mask.sum(1) - 1
    scores: Tensor = model.score(hidden)  # type: ignore[operator]
    return scores[range(len(scores)), last]


_SCORE = Head(("score",), _score)

HEADS = Heads(
    auto="AutoModelForSequenceClassification",
    adapters="SEQ_CLS",
    problem_type="single_label_classification",
    dense=1,
    by_family={
        "bert": Head(("bert.pooler", "classifier"), _bert),
        "distilbert": Head(("pre_classifier", "classifier"), _distilbert),
        "roberta": Head(("classifier",), _classifier),
        "electra": Head(("classifier",), _classifier),
        **dict.fromkeys(("gpt2", "llama", "mistral", "qwen2"), _SCORE),
    },
)
