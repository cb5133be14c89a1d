"""JSON that no writer makes: so deep, so long or of so many parts that a few bytes of a kept example must stand for it."""

import json
from collections.abc import Callable
from typing import Any

_MADE: dict[str, Callable[[int], str]] = {
    # Objects within objects, and lists within lists.
    "$deep": lambda levels: '{"a":' * levels + "1" + "}" * levels,
    "$lists": lambda levels: "[" * levels + "]" * levels,
    # A long text, many fields, many items that are each an object of their own for whoever parses them.
    "$text": lambda length: '"' + "a" * length + '"',
    "$keys": lambda count: "{" + ",".join(f'"k{number}":{{}}' for number in range(count)) + "}",
    "$items": lambda count: "[" + ",".join(["[]"] * count) + "]",
    # Variables with names that no pod may have: the server says so of each.
    "$names": lambda count: "[" + ",".join(f'{{"name":"={number}"}}' for number in range(count)) + "]",
}
_HELD = "\x00held"
"""Begins the text that stands in a value's place until all else is written."""


def marked(name: str, amount: int) -> dict[str, int]:
    """What stands for ``amount`` of a kind until :func:`json_of` writes it.

    The kinds: ``$deep``, ``$lists``, ``$text``, ``$keys``, ``$items``, ``$names``.
    """
    assert name in _MADE, name
    return {name: amount}


def json_of(value: Any) -> bytes:
    """``value`` as JSON, with all that it stands for."""
    texts: list[str] = []
    written = json.dumps(_held(value, texts))
    for number, text in enumerate(texts):
        written = written.replace(json.dumps(f"{_HELD}{number}\x00"), text)
    return written.encode()


def _held(value: Any, texts: list[str]) -> Any:
    """``value`` with a name in the place of each mark; ``texts`` gets what the names stand for."""
    if isinstance(value, dict):
        if len(value) == 1 and (name := next(iter(value))) in _MADE and isinstance(value[name], int):
            texts.append(_MADE[name](value[name]))
            return f"{_HELD}{len(texts) - 1}\x00"
        return {key: _held(part, texts) for key, part in value.items()}
    return [_held(part, texts) for part in value] if isinstance(value, list) else value
