"""Columns of conversations: lists of messages, each with who says it and what."""

from __future__ import annotations

from typing import Any

FIELDS = ("role", "content")
"""Of a message, as the hub's datasets and the templates of tokenizers have them; what else a message has is left out."""


def kind() -> Any:
    """The column's type in pyarrow."""
    import pyarrow as pa

    return pa.large_list(pa.struct([(name, pa.large_string()) for name in FIELDS]))


def is_kind(column: Any) -> bool:
    """Whether ``column``, a type of pyarrow, is of conversations."""
    import pyarrow as pa

    if not (pa.types.is_list(column) or pa.types.is_large_list(column)) or not pa.types.is_struct(column.value_type):
        return False
    named = {field.name: field.type for field in column.value_type}
    return all(name in named and (pa.types.is_string(named[name]) or pa.types.is_large_string(named[name])) for name in FIELDS)


def is_conversation(value: Any) -> bool:
    """Whether ``value``, of a JSON file, is one."""
    return isinstance(value, list) and all(
        isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in FIELDS) for entry in value
    )


def plain(value: Any) -> list[dict[str, str]] | None:
    """A conversation with nothing but ``FIELDS``; None: there is none."""
    return None if value is None else [{name: entry[name] for name in FIELDS} for entry in value]
