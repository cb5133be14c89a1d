"""Predictions of tasks with labels: of each text, from one pass of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from lmj_api.base import Message
    from lmj_trainer.data.rows import Rows
    from lmj_trainer.data.ticker import Ticker
    from lmj_trainer.task.saved_model import SavedModel

_BATCH = 32


class Labels(Protocol):
    """What such a task knows of its texts."""

    def rows(self, texts: Sequence[str]) -> Rows:
        """Texts without labels that somebody asks about. UserError: one of them cannot be read."""

    def predictions(
        self, outputs: Tensor, targets: Tensor, texts: Sequence[str], labels: Sequence[str]
    ) -> Iterator[tuple[str, Message]]:
        """What the model says of each of a batch of ``texts``: for people, and as JSON. ``targets``: as of the task, ids from 0 on."""


def predict(task: Labels, saved: SavedModel, texts: Sequence[str], ticker: Ticker) -> list[tuple[str, Message]]:
    """A prediction for each of ``texts``: for people, and as JSON."""
    rows = task.rows(texts)
    types = saved.types and len(rows.texts) == 2
    results: list[tuple[str, Message]] = []
    for start in range(0, len(texts), _BATCH):
        part = texts[start : start + _BATCH]
        # In place of labels, numbers of what has one: there are no more of them than characters.
        ids = np.arange(sum(map(len, part)) + len(part), dtype=np.int64)
        of_part = rows.take(np.arange(start, start + len(part)))
        split = saved.task.encode(saved.tokenizer, of_part, ids, saved.usual_length, types, ticker, "the input")
        for output, targets in saved.outputs(split, _BATCH):
            results += task.predictions(output, targets, part, saved.labels)
    return results
