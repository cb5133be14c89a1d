"""A spec as a tracker shows it: one value for each field."""

from collections.abc import Iterator
from typing import Any

from lmj_api.spec import JobSpec

_LEFT_OUT = {"template", "output"}
"""A template may hold anything, and where results go is no parameter."""


def parameters(spec: JobSpec) -> dict[str, str]:
    """The fields that are set, by their paths in YAML; lists as in JSON."""
    fields = spec.model_dump(mode="json", by_alias=True, exclude=_LEFT_OUT, exclude_none=True)
    return dict(_flat("", fields))


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}" if path else name, inner)
    elif isinstance(value, list):
        yield path, ", ".join(map(str, value))
    else:
        yield path, str(value)
