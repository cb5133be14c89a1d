"""The data of a step whose rows are read while the job trains: the same tensors as of rows at hand, in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lmj_trainer.data.labels import Labels
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.data.tokens import load_tokenizer
from lmj_trainer.dataset.encoder import Encoder
from lmj_trainer.model.stage import Place
from lmj_trainer.strategy.batches import Batches
from lmj_trainer.streaming.stream import Stream
from lmj_trainer.wording import WARNING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from lmj_api.spec import JobSpec
    from lmj_trainer.data.order import Indices
    from lmj_trainer.data.split import Split
    from lmj_trainer.dataset.stored import PreparedDataset
    from lmj_trainer.model.inputs import Inputs

_WARNINGS = 5
"""Of rows that may not be meant, that are told: each batch may have some."""


class StreamedBatches(Batches):
    """A row's number is its place in the order of all epochs, one after the other: which row of which file that is, the stream knows."""

    def __init__(
        self,
        prepared: PreparedDataset,
        spec: JobSpec,
        device: torch.device,
        say: Callable[[str], None],
        aside: Callable[[], None] = lambda: None,
    ) -> None:
        """``say`` gets warnings. ``aside`` is called in the thread that reads ahead. Raises UserError."""
        super().__init__(prepared, spec, device)
        streamed = prepared.streamed
        assert streamed is not None, "the dataset was prepared so"
        self._sample = streamed.sample
        labels = Labels(prepared.labels, streamed.by_number)
        self._encoder = Encoder.of(spec, load_tokenizer(str(prepared.tokenizer)), labels)
        self._stream = Stream(spec, streamed.index, self._used, say, aside)
        self._say, self._warned = say, 0
        self._fetched: tuple[int, Split] | None = None
        """A step, and the tokens of its rows, in their order."""

    def expect(self, step: int) -> None:
        """As of :class:`StepData`."""
        if step < self.steps:
            self._stream.expect(*self._place(step))

    def fetch(self, step: int, check: Callable[[], None]) -> None:
        """As of :class:`StepData`. Raises OutageError when they are not there in time, and UserError for rows that cannot be trained on."""
        if self._fetched is not None and self._fetched[0] == step:
            return
        self._fetched = None
        rows = self._stream.rows(*self._place(step), self.samples, check)
        self._encoder.check(rows, self._warn)
        self._fetched = step, self._encoder.encode(rows, Ticker(lambda text: None), "rows")

    def rehearsal(self) -> Inputs:
        """As of :class:`StepData`, of the first rows, which are at hand."""
        count = len(self.train(0)[0][0])
        which = np.arange(count, dtype=np.int64) % len(self._sample)
        return self._inputs(self._sample, which, which, Place(0, 0))

    def _rows(self, step: int) -> Indices:
        epoch, first = self._place(step)
        return np.arange(first, first + self.samples, dtype=np.int64) + epoch * self.rows

    def _data(self, split: str, rows: Indices) -> tuple[Split, Indices]:
        if split != "train":
            return super()._data(split, rows)
        if self._fetched is None:
            raise RuntimeError("rows are asked for before they are fetched")
        step, tokens = self._fetched
        which = rows - self._rows(step)[0]
        if which.min() < 0 or which.max() >= self.samples:
            raise RuntimeError(f"rows {rows[0]} to {rows[-1]} are asked for, and those of step {step} were fetched")
        return tokens, which

    def _place(self, step: int) -> tuple[int, int]:
        """The epoch of ``step``, and the place of its first row there."""
        epoch, number = divmod(step, self.rows // self.samples)
        return epoch, number * self.samples

    def _used(self, epoch: int) -> int:
        """How many rows of ``epoch`` are trained on. What does not fill a batch is left out, and training may end before."""
        each = self.rows // self.samples
        return max(0, min(each, self.steps - epoch * each)) * self.samples

    def _warn(self, text: str) -> None:
        self._warned += 1
        if self._warned <= _WARNINGS:
            more = "; more are not told" if self._warned == _WARNINGS else ""
            self._say(f"{WARNING}{text.removeprefix(WARNING)}{more}")
