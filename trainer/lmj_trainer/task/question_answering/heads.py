"""From hidden states to two scores for each token: an answer begins there, and ends there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmj_trainer.model.head import Head, Heads

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lmj_trainer.model.inputs import Inputs


def _scores(model: nn.Module, hidden: Tensor, inputs: Inputs) -> Tensor:
    return model.qa_outputs(hidden)  # type: ignore[no-any-return,operator]


def _distilbert(model: nn.Module, hidden: Tensor, inputs: Inputs) -> Tensor:
    return model.qa_outputs(model.dropout(hidden))  # type: ignore[no-any-return,operator]


HEADS = Heads(
    auto="AutoModelForQuestionAnswering",
    adapters="QUESTION_ANS",
    problem_type=None,
    dense=0,
    by_family={
        **dict.fromkeys(("bert", "roberta", "electra"), Head(("qa_outputs",), _scores)),
        "distilbert": Head(("qa_outputs",), _distilbert),
    },
)
