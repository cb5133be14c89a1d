"""The task: its rows, and what is said of a text."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_api.base import Message
from lmj_trainer.data.labels import Labels
from lmj_trainer.errors import UserError
from lmj_trainer.task.sequence_classification.heads import HEADS
from lmj_trainer.task.sequence_classification.task import SequenceClassification, require_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from lmj_trainer.data.rows import Rows
    from lmj_trainer.data.split import Split
    from lmj_trainer.task.port import Objective


class Prediction(Message):
    """What the model says of one text."""

    text: str
    """The text, or the two of a pair with a tab between."""
    value: float
    """The number."""


class Regression(SequenceClassification):
    """Methods are those of :class:`~lmj_trainer.task.port.Task`. Ids and targets are the numbers, ``[rows]``."""

    heads = replace(HEADS, problem_type="regression")
    key: Mapping[str, object] = {"task": "Regression"}
    noun = "model of texts that gives a number"

    def labels(self, rows: Rows, given: Sequence[str] | None, column: str | None) -> Labels:
        """The column's name is that of the model's one output."""
        return Labels((str(column),), by_number=False)

    def ids(self, rows: Rows, labels: Labels) -> NDArray[Any]:
        """``[rows]``, float64. UserError: a value is no number."""
        found = np.empty(len(rows), np.float64)
        for place, value in enumerate(rows.labels):
            try:
                found[place] = float(value)
            except (TypeError, ValueError):
                found[place] = math.nan
            if isinstance(value, bool) or not math.isfinite(found[place]):
                raise UserError(f"{rows.where(place)} has {value!r} in column {labels.names[0]!r}: a number is needed")
        return found

    def targets(self, split: Split, rows: NDArray[np.int64], width: int) -> NDArray[Any]:
        """``[b]``, float32."""
        return np.asarray(split.labels[rows], dtype=np.float32)

    def objective(self, labels: Sequence[str], splits: Mapping[str, Split], smoothing: float = 0.0) -> Objective:
        """Mean squared error."""
        from lmj_trainer.task.regression.objective import NumberObjective

        return NumberObjective()

    def predictions(
        self, outputs: Tensor, targets: Tensor, texts: Sequence[str], labels: Sequence[str]
    ) -> Iterator[tuple[str, Message]]:
        """The number of each."""
        for text, (value,) in zip(texts, outputs.double().tolist(), strict=True):
            require_numbers([value])
            yield f"{value:.4f}\t{text}", Prediction(text=text, value=value)
