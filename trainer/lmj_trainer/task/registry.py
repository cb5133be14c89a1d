"""The tasks, by their names in ``spec.model.task``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lmj_api.spec import Task as Name
from lmj_trainer.task.causal_lm.task import CausalLM
from lmj_trainer.task.sequence_classification.task import SequenceClassification
from lmj_trainer.task.token_classification.task import TokenClassification

if TYPE_CHECKING:
    from lmj_trainer.task.port import Task

TASKS: dict[Name, Task] = {
    Name.SEQUENCE_CLASSIFICATION: SequenceClassification(),
    Name.TOKEN_CLASSIFICATION: TokenClassification(),
    Name.CAUSAL_LM: CausalLM(),
}


def task_of(architectures: Iterable[str]) -> Task | None:
    """The task of a saved model, by its configuration's ``architectures``; None: it is of no task that is known."""
    names = tuple(architectures)
    return next((task for task in TASKS.values() if any(map(task.heads.made, names))), None)
