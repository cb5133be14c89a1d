"""Label values to label ids."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmj_api.nearest import did_you_mean
from lmj_trainer.data.classes import require_classes
from lmj_trainer.data.rows import Rows
from lmj_trainer.errors import UserError
from lmj_trainer.wording import listed

_INTEGER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True)
class Labels:
    """The mapping of a job: names in the order of their ids, and how the column writes them."""

    names: tuple[str, ...]
    """Names; the id is the place."""
    by_number: bool
    """The column holds ids, not names."""

    def ids(self, rows: Rows) -> NDArray[np.int64]:
        """The id of each row's label ``[rows]``. UserError: the first row whose value is no label."""
        # A split with names of its own for its numbers is read by these names, so another order of names does no harm.
        own = rows.names if rows.names is not None and set(rows.names) == set(self.names) else None
        place = {name: i for i, name in enumerate(self.names)}
        ids = np.empty(len(rows), dtype=np.int64)
        for i, value in enumerate(rows.labels):
            text = label_text(value)
            if own is not None and text is not None and _INTEGER.fullmatch(text):
                text = own[int(text)] if 0 <= int(text) < len(own) else None
            found = None if text is None else self._number(text) if self.by_number and own is None else place.get(text)
            if found is None:
                raise UserError(self._problem(rows, i))
            ids[i] = found
        return ids

    def _number(self, text: str) -> int | None:
        return int(text) if _INTEGER.fullmatch(text) and 0 <= int(text) < len(self.names) else None

    def _problem(self, rows: Rows, i: int) -> str:
        value = rows.labels[i]
        where = rows.where(i)
        if value is None:
            return f"{where} has no label: remove the row or fill it in"
        near = did_you_mean(str(value), self.names) if isinstance(value, str) else ""
        numbers = f", as numbers 0 to {len(self.names) - 1}" if self.by_number or rows.names is not None else ""
        return f"{where} has label {value!r}, which is not one of {listed(self.names)}{numbers}{near}"


def label_text(value: Any) -> str | None:
    """A label value as text: ``1.0`` is ``1``, as a column of numbers with gaps writes it. None: null."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def labels_of(rows: Rows, given: Sequence[str] | None, column: str) -> Labels:
    """The labels of a job: ``given`` ones, those that the dataset brings, or the distinct values of the training ``rows``."""
    if given is not None:
        return Labels(tuple(given), _holds_numbers(rows, given))
    if rows.names is not None:
        return Labels(rows.names, by_number=True)
    texts = []
    for i, value in enumerate(rows.labels):
        text = label_text(value)
        if text is None:
            raise UserError(f"{rows.where(i)} has no label: remove the row or fill it in")
        if not text.strip():
            raise UserError(f"{rows.where(i)} has an empty label: remove the row or fill it in")
        texts.append(text)
    require_classes(rows, list(rows.labels), texts, column)
    names = set(texts)
    whole = all(_INTEGER.fullmatch(name) for name in names)
    return Labels(tuple(sorted(names, key=int) if whole else sorted(names)), by_number=False)


def _holds_numbers(rows: Rows, given: Sequence[str]) -> bool:
    """Whether the column holds ids: its first value is no name. Decided once, so a column of names never mixes with ids."""
    first = label_text(rows.labels[0])
    return first is not None and first not in given and _INTEGER.fullmatch(first) is not None
