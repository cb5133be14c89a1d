"""The tasks, by their names in ``spec.model.task``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lmj_api.spec import Task as Name
from lmj_trainer.task.causal_lm.task import CausalLM
from lmj_trainer.task.masked_lm.task import MaskedLM
from lmj_trainer.task.multi_label.task import MultiLabelClassification
from lmj_trainer.task.question_answering.task import QuestionAnswering
from lmj_trainer.task.regression.task import Regression
from lmj_trainer.task.sequence_classification.task import SequenceClassification
from lmj_trainer.task.token_classification.task import TokenClassification

if TYPE_CHECKING:
    from lmj_trainer.task.port import Task

TASKS: dict[Name, Task] = {
    Name.SEQUENCE_CLASSIFICATION: SequenceClassification(),
    Name.MULTI_LABEL_CLASSIFICATION: MultiLabelClassification(),
    Name.REGRESSION: Regression(),
    Name.TOKEN_CLASSIFICATION: TokenClassification(),
    Name.CAUSAL_LM: CausalLM(),
    Name.MASKED_LM: MaskedLM(),
    Name.QUESTION_ANSWERING: QuestionAnswering(),
}


def task_of(architectures: Iterable[str], problem: str | None = None) -> Task | None:
    """The task of a saved model, by its configuration's ``architectures`` and ``problem_type``; None: it is of no task that is known."""
    names = tuple(architectures)
    fitting = [task for task in TASKS.values() if any(map(task.heads.made, names))]
    return next((task for task in fitting if task.heads.problem_type == problem), fitting[0] if fitting else None)
