"""The task: its rows, and what is said of a text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_api.base import Message
from lmj_trainer.data.labels import Labels, labels_of
from lmj_trainer.data.rows import Rows
from lmj_trainer.data.texts import check_texts
from lmj_trainer.data.tokens import encode
from lmj_trainer.errors import UserError
from lmj_trainer.task.labelled import predict
from lmj_trainer.task.sequence_classification.heads import HEADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from lmj_trainer.data.split import Split
    from lmj_trainer.data.ticker import Ticker
    from lmj_trainer.task.port import Objective
    from lmj_trainer.task.saved_model import SavedModel


class Prediction(Message):
    """What the model says of one text."""

    text: str
    """The text, or the two of a pair with a tab between."""
    label: str
    """The likeliest label."""
    probability: float
    """Its probability."""
    probabilities: dict[str, float]
    """The probability of each label."""


def require_numbers(outputs: Iterable[float]) -> None:
    """UserError: some of a model's ``outputs`` are not finite."""
    if not all(map(math.isfinite, outputs)):
        raise UserError("the model's outputs are not numbers: it was trained with a learning rate that is too high")


class SequenceClassification:
    """Methods are those of :class:`~lmj_trainer.task.port.Task`. A label for each row: ids and targets are ``[rows]``."""

    heads = HEADS
    key: Mapping[str, object] = {}
    pipeline = "text-classification"
    noun = "text classifier"
    evaluation_rows = 32
    windows = False
    masked = False

    def labels(self, rows: Rows, given: Sequence[str] | None, column: str | None) -> Labels:
        """A value of the column is a label."""
        return labels_of(rows, given, str(column))

    def check(self, rows: Rows, say: Callable[[str], None]) -> None:
        """Every text has to be there."""
        check_texts(rows, say)

    def ids(self, rows: Rows, labels: Labels) -> NDArray[Any]:
        """``[rows]``"""
        return labels.ids(rows)

    def encode(
        self, tokenizer: Any, rows: Rows, ids: NDArray[Any], max_length: int, types: bool, ticker: Ticker, what: str
    ) -> Split:
        """Of a pair the longer text is cut first."""
        return encode(tokenizer, rows, max_length, types, ticker, what, lambda start, chunk: ids[start : start + len(chunk)])

    def targets(self, split: Split, rows: NDArray[np.int64], width: int) -> NDArray[Any]:
        """``[b]``"""
        return np.asarray(split.labels[rows], dtype=np.int64)

    def objective(self, labels: Sequence[str], splits: Mapping[str, Split], smoothing: float = 0.0) -> Objective:
        """Cross entropy."""
        from lmj_trainer.task.sequence_classification.objective import TextObjective

        return TextObjective(labels, smoothing)

    def predict(self, saved: SavedModel, texts: Sequence[str], ticker: Ticker) -> list[tuple[str, Message]]:
        """From one pass."""
        return predict(self, saved, texts, ticker)

    def rows(self, texts: Sequence[str]) -> Rows:
        """A text with a tab is a pair."""
        pairs = [text.split("\t") for text in texts]
        parts = len(pairs[0])
        for number, pair in enumerate(pairs, 1):
            if len(pair) != parts or parts > 2:
                raise UserError(
                    f"text {number} has {len(pair)} parts (a tab between them): give each text one part, or each the two of a pair"
                )
        return Rows.of_texts([f"text {part + 1}" for part in range(parts)], list(zip(*pairs, strict=True)), [None] * len(texts))

    def predictions(
        self, outputs: Tensor, targets: Tensor, texts: Sequence[str], labels: Sequence[str]
    ) -> Iterator[tuple[str, Message]]:
        """The likeliest label of each, with its probability."""
        for text, chances in zip(texts, outputs.double().softmax(-1).tolist(), strict=True):
            require_numbers(chances)
            best = max(range(len(chances)), key=chances.__getitem__)
            found = Prediction(
                text=text,
                label=labels[best],
                probability=chances[best],
                probabilities=dict(zip(labels, chances, strict=True)),
            )
            yield f"{found.label}\t{found.probability:.4f}\t{text}", found
