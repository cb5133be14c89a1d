"""Whether the values of a column can be classes: checked where the job does not name its labels, because every value would become one."""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from lmj_trainer.data.rows import Rows
from lmj_trainer.data.texts import MARKS
from lmj_trainer.errors import UserError
from lmj_trainer.wording import listed

MOST = 10_000
"""More classes than that no model here has."""
_FEW = 50
"""So many different values may be anything; more have to look like classes."""
_MOST_NUMBERS = 1000
"""More different numbers are a quantity, even without gaps."""
_ROWS_EACH = 3
"""Rows that a class has at least, on average, where there are many."""
_INSTEAD = "name another column as dataset.label, or the classes in model.labels"


def require_classes(rows: Rows, values: Sequence[Any], texts: Sequence[str], column: str) -> None:
    """UserError: the labels ``texts`` (of the ``values`` of ``rows``) are no classes, or some are the same in other letters."""
    first: dict[str, int] = {}
    counts: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text, place)
        counts[text] = counts.get(text, 0) + 1
    where = f"column {column!r} of {rows.origin}"
    for mark in MARKS:
        if mark in counts:
            problem = f"{rows.where(first[mark])} has label {mark!r}, which marks a missing value ({counts[mark]} rows in all)"
            raise UserError(f"{problem}: remove such rows, or name it in model.labels if it is meant")
    if len(counts) < 2:
        raise UserError(f"{where} holds one label only, {texts[0]!r}: there is nothing to tell apart")
    _require_no_quantity(rows, values, first, where)
    if len(counts) > MOST or (len(counts) > _FEW and len(texts) < _ROWS_EACH * len(counts)):
        raise UserError(f"{where} holds {len(counts)} different values in {len(texts)} rows: they are no classes; {_INSTEAD}")
    _require_unlike(rows, counts, first, where)


def _require_no_quantity(rows: Rows, values: Sequence[Any], first: Mapping[str, int], where: str) -> None:
    numbers = {text: number for text in first if (number := _number(text)) is not None}
    if len(numbers) < len(first):
        return
    for text, number in numbers.items():
        if not number.is_integer():
            place = first[text]
            raise UserError(f"{rows.where(place)} has label {values[place]!r}: {where} holds numbers and no classes; {_INSTEAD}")
    low, high = min(numbers.values()), max(numbers.values())
    gaps = high - low + 1 != len(set(numbers.values()))
    if len(numbers) > _MOST_NUMBERS or (len(numbers) > _FEW and gaps):
        span = f"{len(numbers)} different numbers, from {low:.0f} to {high:.0f}"
        raise UserError(f"{where} holds {span}: a quantity and no classes; {_INSTEAD}")


def _require_unlike(rows: Rows, counts: Mapping[str, int], first: Mapping[str, int], where: str) -> None:
    alike: dict[object, list[str]] = {}
    for text in counts:
        alike.setdefault(_plain(text), []).append(text)
    for same in alike.values():
        if len(same) > 1:
            told = [f"{text!r} ({counts[text]} rows, the first is row {rows.numbers[first[text]]})" for text in same]
            raise UserError(
                f"{where} writes one label in {len(same)} ways, {listed(told)}: write it in one, or name each in model.labels"
            )


def _plain(text: str) -> object:
    """What two ways to write one label have in common: the number, or the words whatever their case, spaces and way to be encoded."""
    number = _number(text)
    return number if number is not None else " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None
