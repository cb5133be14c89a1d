"""Columns of conversations: lists of messages, each with who says it and what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELDS = ("role", "content")
"""Of a message, as the hub's datasets and the templates of tokenizers have them; what else a message has is left out."""


def kind() -> Any:
    """The column's type in pyarrow."""
    import pyarrow as pa

    return pa.large_list(pa.struct([(name, pa.large_string()) for name in FIELDS]))


def is_kind(type_: Any) -> bool:
    """Whether ``type_``, a type of pyarrow, is of conversations."""
    import pyarrow as pa

    if not (pa.types.is_list(type_) or pa.types.is_large_list(type_)) or not pa.types.is_struct(type_.value_type):
        return False
    named = {field.name: field.type for field in type_.value_type}
    return all(name in named and (pa.types.is_string(named[name]) or pa.types.is_large_string(named[name])) for name in FIELDS)


def is_conversation(value: Any) -> bool:
    """Whether ``value``, of a JSON file, is one."""
    return isinstance(value, list) and all(
        isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in FIELDS) for entry in value
    )


def column(values: Iterable[Any]) -> Any:
    """The column of these conversations, with nothing but ``FIELDS``; of None nothing."""
    import pyarrow as pa

    plain = [None if value is None else [{name: entry[name] for name in FIELDS} for entry in value] for value in values]
    return pa.chunked_array([pa.array(plain, kind())])
