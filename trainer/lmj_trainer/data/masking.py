"""Hiding tokens of a text, for a model that learns to tell them: a pure function of the seed and of where a row is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lmj_trainer.data.split import NO_LABEL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmj_trainer.data.batch import Batch

_MASKED, _KEPT = 0.8, 0.9
"""Of hidden tokens, eight in ten are read as the mask and the last one in ten as it is; of those between another is read."""
_TAG = 0x4D41534B

Place = tuple[int, ...]
"""Where a row is: its step and its place in the global batch, or in an evaluation its number in the split."""


@dataclass(frozen=True)
class Masking:
    """BERT's rule: of each row some tokens are learned, and the model reads others in their place."""

    seed: int
    probability: float
    """The part of a row's tokens that are learned, rounded; at least one is."""
    mask_id: int
    """The token that stands for a hidden one."""
    vocabulary: int
    """Tokens of which any may be read in another's place."""

    def hidden(self, batch: Batch, places: Sequence[Place]) -> Batch:
        """``batch`` as the model reads it. Its labels are tokens ``[b, t]``, ``NO_LABEL`` where none may be hidden."""
        ids, labels = batch.input_ids.copy(), np.full_like(batch.labels, NO_LABEL)
        for row, place in enumerate(places):
            chosen, read = self._drawn(batch.labels[row], place)
            labels[row, chosen] = batch.labels[row, chosen]
            ids[row, chosen] = read
        return replace(batch, input_ids=ids, labels=labels)

    def targets(self, labels: NDArray[np.int64], places: Sequence[Place]) -> NDArray[np.int64]:
        """The labels of :meth:`hidden` alone."""
        learned = np.full_like(labels, NO_LABEL)
        for row, place in enumerate(places):
            chosen, _ = self._drawn(labels[row], place)
            learned[row, chosen] = labels[row, chosen]
        return learned

    def _drawn(self, tokens: NDArray[np.int64], place: Place) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which of ``tokens`` are learned, by their places in the row, and what is read there."""
        # RandomState, not Generator: its stream is frozen, so a run can be resumed under another version of numpy.
        draw = np.random.RandomState([self.seed, *place, _TAG])
        (free,) = np.nonzero(tokens != NO_LABEL)
        count = min(len(free), max(1, round(len(free) * self.probability)))
        chosen = draw.permutation(free)[:count]
        chance, others = draw.random_sample(count), draw.randint(0, self.vocabulary, count, np.int64)
        read = np.where(chance < _MASKED, self.mask_id, np.where(chance < _KEPT, others, tokens[chosen]))
        return chosen, read
