"""The task: its rows, and what is said of a text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_api.base import Message
from lmj_trainer.data.labels import Labels, labels_of
from lmj_trainer.data.rows import Rows
from lmj_trainer.data.split import NO_LABEL
from lmj_trainer.data.tokens import encode
from lmj_trainer.errors import UserError
from lmj_trainer.task.labelled import predict
from lmj_trainer.task.token_classification.heads import HEADS
from lmj_trainer.task.token_classification.words import by_word, check_words, in_words, token_labels, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from lmj_trainer.data.split import Split
    from lmj_trainer.data.ticker import Ticker
    from lmj_trainer.task.port import Objective
    from lmj_trainer.task.saved_model import SavedModel


class Word(Message):
    """What the model says of a word."""

    word: str
    """As it was given."""
    label: str
    """The likeliest label."""
    probability: float
    """Its probability."""


class Prediction(Message):
    """What the model says of one text."""

    words: list[Word]
    """Those that fit into the model, in order."""


class TokenClassification:
    """Methods are those of :class:`~lmj_trainer.task.port.Task`. A label for each word: ids are ``[words]`` of all rows, targets ``[b, t]``."""

    heads = HEADS
    key: Mapping[str, object] = {"task": "TokenClassification"}
    pipeline = "token-classification"
    noun = "classifier of words"
    evaluation_rows = 32
    windows = False
    masked = False

    def labels(self, rows: Rows, given: Sequence[str] | None, column: str | None) -> Labels:
        """A value of the column's lists is a label."""
        check_words(rows)
        return labels_of(by_word(rows), given, str(column))

    def check(self, rows: Rows, say: Callable[[str], None]) -> None:
        """Every row has to have words."""
        check_words(rows)

    def ids(self, rows: Rows, labels: Labels) -> NDArray[np.int64]:
        """``[words]``"""
        return labels.ids(by_word(rows))

    def encode(
        self, tokenizer: Any, rows: Rows, ids: NDArray[Any], max_length: int, types: bool, ticker: Ticker, what: str
    ) -> Split:
        """UserError: of some row no word is left."""
        if not tokenizer.is_fast:
            raise UserError(
                f"the tokenizer {type(tokenizer).__name__} does not say which token is of which word: save a fast one"
            )
        words = [words_of(value) for value in rows.texts[0].to_pylist()]
        begins = np.cumsum([0, *map(len, words)])

        def labels(start: int, chunk: Sequence[Any]) -> NDArray[np.int64]:
            found = []
            for place, spans in enumerate(chunk, start):
                found.append(token_labels(words[place], ids[begins[place] : begins[place + 1]], spans))
                if (found[-1] == NO_LABEL).all():
                    raise UserError(
                        f"{rows.where(place)} has no word that the tokenizer knows within {max_length} tokens (dataset.maxLength)"
                    )
            return np.concatenate(found)

        return encode(tokenizer, in_words(rows, words), max_length, types, ticker, what, labels, offsets=True)

    def targets(self, split: Split, rows: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """``[b, width]``, ``NO_LABEL`` where no word begins."""
        targets = np.full((len(rows), width), NO_LABEL, np.int64)
        for place, row in enumerate(rows):
            begin, end = split.offsets[row], split.offsets[row + 1]
            targets[place, : end - begin] = split.labels[begin:end]
        return targets

    def objective(self, labels: Sequence[str], splits: Mapping[str, Split], smoothing: float = 0.0) -> Objective:
        """Cross entropy."""
        from lmj_trainer.task.token_classification.objective import WordObjective

        return WordObjective(labels, smoothing)

    def predict(self, saved: SavedModel, texts: Sequence[str], ticker: Ticker) -> list[tuple[str, Message]]:
        """From one pass."""
        return predict(self, saved, texts, ticker)

    def rows(self, texts: Sequence[str]) -> Rows:
        """Words are separated by white space."""
        rows = Rows.of_texts(["text"], [texts], [None] * len(texts))
        check_words(rows)
        return rows

    def predictions(
        self, outputs: Tensor, targets: Tensor, texts: Sequence[str], labels: Sequence[str]
    ) -> Iterator[tuple[str, Message]]:
        """A line for each word, and an empty one after each text, as in CoNLL's files. Words that were cut off have none."""
        first = 0
        for text, chances, places in zip(texts, outputs.double().softmax(-1).tolist(), targets.tolist(), strict=True):
            words, found = words_of(text), []
            for row, place in zip(chances, places, strict=True):
                if place == NO_LABEL:
                    continue
                if not all(map(math.isfinite, row)):
                    raise UserError("the model's outputs are not numbers: it was trained with a learning rate that is too high")
                best = max(range(len(row)), key=row.__getitem__)
                found.append(Word(word=words[place - first], label=labels[best], probability=row[best]))
            first += len(words)
            lines = [f"{entry.word}\t{entry.label}\t{entry.probability:.4f}\n" for entry in found]
            yield "".join(lines), Prediction(words=found)
