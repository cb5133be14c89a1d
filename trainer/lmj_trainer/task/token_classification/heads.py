"""The classifiers of tokens: the same in all families."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmj_trainer.model.head import Head, Heads

if TYPE_CHECKING:
    from torch import Tensor, nn


def _classifier(model: nn.Module, hidden: Tensor) -> Tensor:
    return model.classifier(model.dropout(hidden))  # type: ignore[no-any-return,operator]


_HEAD = Head(("classifier",), _classifier)

HEADS = Heads(
    auto="AutoModelForTokenClassification",
    adapters="TOKEN_CLS",
    problem_type=None,
    dense=0,
    by_family={"bert": _HEAD, "distilbert": _HEAD, "roberta": _HEAD, "electra": _HEAD},
)
