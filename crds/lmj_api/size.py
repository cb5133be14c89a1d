"""How large a job may be: an operator keeps the jobs of many, and goes through all of one whenever it changes."""

from collections.abc import Mapping
from typing import Any

from lmj_api.problems import SpecError

MOST_BYTES = 256 << 10
"""Of a spec as JSON, about. A pod, which carries it, can have no more."""
MOST_VALUES = 10_000
"""In a spec: fields, items, and what holds them."""
DEEPEST = 64
"""Levels of a document."""
_HOLDERS = (dict, list, tuple, Mapping)
"""What holds values, with the most frequent first."""
_OUTSIDE = 4
"""Times as much is what else a file may hold: the status of an object that was saved, and who manages its fields."""


def check_size(document: Mapping[Any, Any]) -> None:
    """Raise SpecError, with one line, for a job that is too large. It looks at so much and no more, whatever the document has."""
    spec = document.get("spec")
    if (what := _excess(spec)) is not None:
        within = _excess(spec.get("template")) if isinstance(spec, Mapping) else None
        raise SpecError(f"{'spec.template' if within else 'spec'}: {within or what}")
    if (what := _excess({key: value for key, value in document.items() if key != "spec"}, _OUTSIDE)) is not None:
        raise SpecError(f"the file, besides the spec: {what}")


def _excess(value: object, times: int = 1) -> str | None:
    """What ``value`` has too much of, and what to do; None: of nothing."""
    size, values, left = 0, 0, [(value, 0)]
    while left:
        item, depth = left.pop()
        if isinstance(item, str):
            size += len(item) + 3 if item.isascii() else 4 * len(item)
        elif isinstance(item, _HOLDERS):
            size, values = size + 2, values + len(item)
            if depth > DEEPEST:
                return f"nested deeper than {DEEPEST} levels"
            # Before they are looked at: there may be a million, and a file may name one again and again.
            if values > times * MOST_VALUES:
                return _too_much(f"{times * MOST_VALUES:,} values")
            if isinstance(item, Mapping):
                size += sum(len(key) + 4 if isinstance(key, str) else 8 for key in item)
                left += ((part, depth + 1) for part in item.values())
            else:
                left += ((part, depth + 1) for part in item)
        else:
            size += 8
        if size > times * MOST_BYTES:
            return _too_much(f"{times * MOST_BYTES >> 10} KiB")
    return None


def _too_much(what: str) -> str:
    return f"more than {what}, the most that a job may have: put what is large into a ConfigMap or on a volume, and name that"
