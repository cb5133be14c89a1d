"""The tasks, by their names in ``spec.model.task``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lmj_api.spec import Task as Name
from lmj_trainer.task.sequence_classification import SequenceClassification

if TYPE_CHECKING:
    from lmj_trainer.task.port import Task

TASKS: dict[Name, Callable[[Sequence[str]], Task]] = {Name.SEQUENCE_CLASSIFICATION: SequenceClassification}
"""Each is made of the labels' names, in the order of their ids."""
