"""Rows as tokens with their labels, some at a time, for as long as a job trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmj_trainer.data.tokens import reads_types
from lmj_trainer.task.registry import TASKS

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec
    from lmj_trainer.data.labels import Labels
    from lmj_trainer.data.rows import Rows
    from lmj_trainer.data.source import Say
    from lmj_trainer.data.split import Split
    from lmj_trainer.data.ticker import Ticker
    from lmj_trainer.task.port import Task


@dataclass(frozen=True, eq=False)
class Encoder:
    """What makes tokens of a job's rows. Pure: the same rows always give the same."""

    task: Task
    tokenizer: Any
    labels: Labels
    max_length: int
    types: bool
    """The model tells the two texts of a pair apart."""

    @classmethod
    def of(cls, spec: JobSpec, tokenizer: Any, labels: Labels) -> Encoder:
        """That of a job. UserError: its model cannot be read."""
        return cls(TASKS[spec.model.task], tokenizer, labels, spec.dataset.max_length, reads_types(spec))

    def check(self, rows: Rows, say: Say) -> None:
        """UserError for rows that cannot be trained on; ``say`` gets a warning of those that may be meant."""
        self.task.check(rows, say)
        self.task.ids(rows, self.labels)

    def encode(self, rows: Rows, ticker: Ticker, what: str) -> Split:
        """``rows``, which were checked, as tokens. ``what``: their name in progress. UserError: nothing of a row can be learned."""
        return self.task.encode(self.tokenizer, rows, self.task.ids(rows, self.labels), self.max_length, self.types, ticker, what)
