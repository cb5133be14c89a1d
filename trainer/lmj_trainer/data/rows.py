"""The labelled texts of a split as they were read, before any of it is checked, cut or tokenized."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lmj_api.nearest import did_you_mean
from lmj_trainer.data.order import Indices
from lmj_trainer.errors import UserError
from lmj_trainer.wording import listed


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of equal length."""

    columns: tuple[str, ...]
    """Names of the text columns, or of all."""
    texts: tuple[Any, ...]
    """One or two pyarrow arrays of strings, or of the lists of a text's words, or of conversations; or all columns, of any type."""
    labels: "np.ndarray[Any, np.dtype[np.object_]]"
    """Label values as they were read: str, int, float, bool or None; or lists of them, one for each word."""
    names: tuple[str, ...] | None
    """Label names that the dataset itself brings for the numbers in ``labels``."""
    origin: str
    """What to call the source in a message."""
    numbers: Indices
    """Which row of the source each is, from 1."""
    origins: "np.ndarray[Any, np.dtype[np.object_]] | None" = None
    """What to call the file of each in a message, where they are of several files ``[rows]``, str; None: all are of ``origin``."""

    @classmethod
    def of(
        cls, columns: Sequence[str], texts: Sequence[Any], labels: Sequence[Any], names: Sequence[str] | None, origin: str
    ) -> "Rows":
        """All rows of a source."""
        values = np.empty(len(labels), dtype=object)
        values[:] = labels
        return cls(
            tuple(columns),
            tuple(texts),
            values,
            None if names is None else tuple(names),
            origin,
            np.arange(1, len(labels) + 1, dtype=np.int64),
        )

    @classmethod
    def of_texts(cls, columns: Sequence[str], texts: Sequence[Sequence[str]], labels: Sequence[Any]) -> "Rows":
        """What somebody gave on a command line: ``texts`` of each column."""
        import pyarrow as pa

        arrays = [pa.chunked_array([pa.array(column, pa.large_string())]) for column in texts]
        return cls.of(columns, arrays, labels, None, "the input")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, which: Indices) -> "Rows":
        """The rows at the places ``which``."""
        return replace(
            self,
            texts=tuple(text.take(which) for text in self.texts),
            labels=self.labels[which],
            numbers=self.numbers[which],
            origins=None if self.origins is None else self.origins[which],
        )

    def spread(self, values: Sequence[Any], places: Indices) -> "Rows":
        """A row without a text for each of ``values``, which are labels: the several ones of a row, or those of its words.

        ``places [values]``: the place of the row here that each is of. Messages tell that row.
        """
        labels = np.empty(len(values), dtype=object)
        labels[:] = values
        origins = None if self.origins is None else self.origins[places]
        return replace(self, columns=(), texts=(), labels=labels, numbers=self.numbers[places], origins=origins)

    def where(self, place: int) -> str:
        """``row 17 of reviews.csv``, for the row at ``place``."""
        return f"row {self.numbers[place]} of {self.origin if self.origins is None else self.origins[place]}"


def as_text(value: str | Sequence[str | Mapping[str, str]]) -> str:
    """A text, or the one of these words, or of these messages."""
    return value if isinstance(value, str) else " ".join(part if isinstance(part, str) else part["content"] for part in value)


def columns(text: Sequence[str], label: str | None) -> list[str]:
    """Names of what is read, each once."""
    return list(dict.fromkeys([*text, *([] if label is None else [label])]))


def require_columns(wanted: Sequence[str], there: Sequence[str], origin: str) -> None:
    """Raises UserError for the first of ``wanted`` that is not in ``there``: the nearest one, and all."""
    for name in wanted:
        if name not in there:
            raise UserError(f"{origin} has no column {name!r}{did_you_mean(name, there)} (columns: {listed(there)})")
