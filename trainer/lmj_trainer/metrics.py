"""What a pass over a split says of the model, from its counts."""

import operator
from collections.abc import Iterable, Sequence
from functools import reduce

from lmj_api.protocol import Evaluation


def evaluate_counts(confusion: list[list[int]], loss_sum: float, labels: Sequence[str], split: str, step: int) -> Evaluation:
    """The evaluation of ``split`` at ``step``.

    ``confusion``: counts, rows are true labels, columns predicted ones; ``loss_sum``: cross entropy over all rows. A label that
    is neither there nor predicted has an F1 of 0. Raises ValueError for a matrix that is not ``labels`` by ``labels`` or all 0.
    """
    size = len(labels)
    if len(confusion) != size or any(len(row) != size for row in confusion):
        raise ValueError(f"the confusion matrix of {size} labels is not {size} by {size}")
    samples = sum(map(sum, confusion))
    if samples == 0:
        raise ValueError(f"no row of {split} was counted")
    scores = [_f1(confusion, label) for label in range(size)]
    return Evaluation(
        split=split,
        step=step,
        samples=samples,
        loss=loss_sum / samples,
        accuracy=sum(confusion[i][i] for i in range(size)) / samples,
        f1=scores[1] if size == 2 else sum(scores) / size,
        labels=list(labels),
        confusion=confusion,
    )


def in_order(losses: Iterable[Sequence[float]]) -> float:
    """The sum of numbered ones, one after the other: its bits depend neither on who counted them nor on the version of Python's ``sum``."""
    return reduce(operator.add, (loss for _, loss in sorted(losses, key=lambda pair: pair[0])), 0.0)


def merge(confusion: list[list[int]], more: Sequence[Sequence[int]]) -> None:
    """Counts what ``more`` has counted into ``confusion``, which is of the same labels."""
    for row, added in zip(confusion, more, strict=True):
        row[:] = [one + other for one, other in zip(row, added, strict=True)]


def count(confusion: list[list[int]], true: Sequence[int], predicted: Sequence[int]) -> None:
    """Counts rows with ``true`` and ``predicted`` label ids into ``confusion``."""
    for row, column in zip(true, predicted, strict=True):
        confusion[row][column] += 1


def _f1(confusion: list[list[int]], label: int) -> float:
    hits = confusion[label][label]
    all_true = sum(confusion[label])
    all_predicted = sum(row[label] for row in confusion)
    return 2 * hits / (all_true + all_predicted) if all_true + all_predicted else 0.0
