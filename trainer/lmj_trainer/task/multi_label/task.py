"""The task: its rows, and what is said of a text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_api.base import Message
from lmj_trainer.data.labels import Labels, labels_of
from lmj_trainer.data.rows import Rows
from lmj_trainer.errors import UserError
from lmj_trainer.task.sequence_classification.heads import HEADS
from lmj_trainer.task.sequence_classification.task import SequenceClassification, require_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from lmj_trainer.data.split import Split
    from lmj_trainer.task.port import Objective


class Prediction(Message):
    """What the model says of one text."""

    text: str
    """The text, or the two of a pair with a tab between."""
    labels: list[str]
    """Those that are more likely than not, in the order of their ids."""
    probabilities: dict[str, float]
    """The probability of each label."""


class MultiLabelClassification(SequenceClassification):
    """Methods are those of :class:`~lmj_trainer.task.port.Task`. Ids and targets are ``[rows, labels]``, 1 where a row has the label."""

    heads = replace(HEADS, problem_type="multi_label_classification")
    key: Mapping[str, object] = {"task": "MultiLabelClassification"}
    noun = "classifier of texts, which may have several labels,"

    def labels(self, rows: Rows, given: Sequence[str] | None, column: str | None) -> Labels:
        """A value of the column's lists is a label. UserError: there is none."""
        each, _ = _exploded(rows)
        if not len(each):
            raise UserError(f"{rows.origin}: no row has a label: name the column of the labels as dataset.label")
        return labels_of(each, given, str(column))

    def ids(self, rows: Rows, labels: Labels) -> NDArray[Any]:
        """``[rows, labels]``"""
        each, places = _exploded(rows)
        found = np.zeros((len(rows), len(labels.names)), np.int64)
        found[places, labels.ids(each)] = 1
        return found

    def targets(self, split: Split, rows: NDArray[np.int64], width: int) -> NDArray[Any]:
        """``[b, labels]``, float32."""
        return np.asarray(split.labels[rows], dtype=np.float32)

    def objective(self, labels: Sequence[str], splits: Mapping[str, Split], smoothing: float = 0.0) -> Objective:
        """Binary cross entropy."""
        from lmj_trainer.task.multi_label.objective import LabelsObjective

        return LabelsObjective()

    def predictions(
        self, outputs: Tensor, targets: Tensor, texts: Sequence[str], labels: Sequence[str]
    ) -> Iterator[tuple[str, Message]]:
        """The labels that are more likely than not."""
        for text, chances in zip(texts, outputs.double().sigmoid().tolist(), strict=True):
            require_numbers(chances)
            likely = [label for label, chance in zip(labels, chances, strict=True) if chance > 0.5]
            found = Prediction(text=text, labels=likely, probabilities=dict(zip(labels, chances, strict=True)))
            yield f"{', '.join(likely) or '-'}\t{text}", found


def _exploded(rows: Rows) -> tuple[Rows, NDArray[np.int64]]:
    """A row for each label of ``rows``, and the place of its row. In a table labels have commas between them."""
    values: list[Any] = []
    counts = []
    for given in rows.labels:
        each = [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given
        each = each if isinstance(each, list) else [] if each is None else [each]
        values += each
        counts.append(len(each))
    places = np.repeat(np.arange(len(rows)), counts)
    return rows.spread(values, places), places
