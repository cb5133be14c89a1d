"""How a mistake in a job's file is told: one line each, five at most."""

import json

MOST = 5
"""Mistakes told at once: more would hide the first."""


_LONGEST_KEY = 64


class SpecError(Exception):
    """A mistake of the user, final: ``lines`` has one line for each, ``str()`` the first :data:`MOST` of them."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines[:MOST]))
        self.lines = lines


def shown_key(key: str) -> str:
    """A name that somebody made up, in a line for people."""
    return key if key.isprintable() and len(key) <= _LONGEST_KEY else repr(key[:_LONGEST_KEY])


def show(value: object) -> str:
    """``value`` as a user wrote it in YAML or JSON, in a few words: ``true``, ``'16'``, ``a list``."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return repr(value if len(value) <= 60 else value[:57] + "...")
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return str(value)


def kind_of(value: object) -> str:
    """What ``value`` is, for people: ``a number``."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"
