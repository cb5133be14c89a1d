"""The port of a task: what it takes from the rows, what stands on the encoder, what is computed of that, and what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from lmj_api.base import Message
    from lmj_api.protocol import Evaluation
    from lmj_trainer.data.labels import Labels
    from lmj_trainer.data.rows import Rows
    from lmj_trainer.data.split import Split
    from lmj_trainer.data.ticker import Ticker
    from lmj_trainer.model.head import Heads
    from lmj_trainer.task.saved_model import SavedModel


class Task(Protocol):
    """What a model is trained for. Without state, and imported without torch: :meth:`objective` alone needs it."""

    heads: Heads
    """Of its models."""
    key: Mapping[str, object]
    """What tokenized rows depend on beside the dataset and the tokenizer, as JSON."""
    pipeline: str
    """The pipeline of transformers that uses the model: ``text-classification``."""
    noun: str
    """What the model is: ``text classifier``."""
    evaluation_rows: int
    """Rows of a micro-batch without a backward pass."""
    windows: bool
    """Whether a long row becomes several of a split."""
    masked: bool
    """Whether tokens of a batch are hidden from the model, by :class:`~lmj_trainer.data.masking.Masking`: its targets are those that may be."""

    def labels(self, rows: Rows, given: Sequence[str] | None, column: str | None) -> Labels:
        """Those of a job: ``given`` ones, those that the dataset brings, or those found in the training ``rows``; none where the task has none.

        UserError: there should be some.
        """

    def check(self, rows: Rows, say: Callable[[str], None]) -> None:
        """UserError for rows that cannot be trained on; ``say`` gets a warning of those that may be meant."""

    def ids(self, rows: Rows, labels: Labels) -> NDArray[Any]:
        """Ids of the labels of ``rows``, in order. UserError: a value is no label."""

    def encode(
        self, tokenizer: Any, rows: Rows, ids: NDArray[Any], max_length: int, types: bool, ticker: Ticker, what: str
    ) -> Split:
        """``rows`` as tokens, cut at ``max_length``, with their label ``ids``. ``types``: with token types; ``what``: their name in progress."""

    def targets(self, split: Split, rows: NDArray[np.int64], width: int) -> NDArray[Any]:
        """The labels of a batch of ``rows`` that are padded to ``width`` tokens, as the objective takes them."""

    def objective(self, labels: Sequence[str], splits: Mapping[str, Split], smoothing: float = 0.0) -> Objective:
        """What is computed of the head's output.

        ``labels``: names in the order of their ids; ``splits``: those that may be evaluated; ``smoothing``: how much of each label is spread
        over all of them in the loss that is differentiated, for tasks whose loss is a cross entropy over labels or tokens.
        """

    def predict(self, saved: SavedModel, texts: Sequence[str], ticker: Ticker) -> list[tuple[str, Message]]:
        """What the model says of each of ``texts``: for people, and as JSON. UserError: one of them cannot be read."""


class Objective(Protocol):
    """What the last stage computes of the head's output. Pure: nothing of it is state."""

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a micro-batch, to be differentiated."""

    def samples(self, labels: Tensor) -> int:
        """How much a micro-batch counts beside the others of its step."""

    def counts(self, payload: Any = None) -> Counts:
        """Nothing counted yet, or what ``payload`` says."""

    def evaluation(self, counts: Any, split: str, step: int) -> Evaluation:
        """What ``counts`` says of the model after ``step`` steps. Raises ValueError when nothing was counted."""


class Counts(Protocol):
    """What a pass over a split adds up: the same whoever counted which micro-batch."""

    def add(self, number: int, output: Tensor, labels: Tensor) -> None:
        """Count micro-batch ``number`` of the split. ``output``: of the model's head; ``labels``: int64."""

    def merge(self, payload: Any) -> None:
        """Count what another counted of other micro-batches."""

    def payload(self) -> Any:
        """All of it, as plain numbers and lists: it is sent to the rank that reports it."""
