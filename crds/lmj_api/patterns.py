"""Regular expressions of users, matched in time that is linear in the text: an operator has the jobs of many.

Python's matcher tries all ways: ``a+a+b`` takes a power of the line's length, ``(a+)+b`` takes years. The one that pydantic has for the fields
of its models keeps a set of states instead. What it costs then is the number of states for each character, which the bounds here keep small.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema

MOST_COUNTED = 50
"""What all counts in braces of a pattern may add up to: ``x{50}`` is fifty states. One of a class counts once more for each 8 of its parts."""
MOST_WIDE = 20
"""Characters in classes of a pattern that are not ASCII: a range of them is dozens of states."""
KEPT = 64
"""Patterns that are compiled and kept."""

_TOKEN = re.compile(
    r"(?P<item>\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)"
    r"(?P<repeat>[*+?]|\{[0-9]+\}|\{[0-9]*,[0-9]*\})?(?P<more>[*+?])?",
    re.DOTALL,
)
_PART = re.compile(r"(\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\.|.)", re.DOTALL)
_DIGITS, _WORD, _SPACE = "0-9", "0-9A-Za-z_", r"\t\n\x0B\x0C\r\x1C-\x1F "
_SETS = {
    "d": f"[{_DIGITS}]",
    "w": f"[{_WORD}]",
    "s": f"[{_SPACE}]",
    "D": f"[^{_DIGITS}]",
    "W": f"[^{_WORD}]",
    "S": f"[^{_SPACE}]",
}
"""Of ASCII: with all letters there are, one of them has a thousand states."""
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_PLACES = {"b": r"(?-u:\b)", "A": r"\A", "Z": r"\z"}


def check_pattern(pattern: str) -> None:
    """Raise ValueError for a pattern that is none, or is of none of the kinds that are matched here. It says what to write instead."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    _compiled(pattern)


def found(pattern: str, line: str) -> bool:
    """Whether ``pattern``, which was checked, is found anywhere in ``line``."""
    return _compiled(pattern).isinstance_python(line)


@lru_cache(maxsize=KEPT)
def _compiled(pattern: str) -> SchemaValidator:
    """Raises ValueError as :func:`check_pattern` does."""
    text = "".join(_translated(pattern))
    try:
        return SchemaValidator(core_schema.str_schema(pattern=text, regex_engine="rust-regex"))
    except (SchemaError, UnicodeError):
        raise ValueError(
            f"{pattern!r} is no regular expression that can be matched: write letters, ., [...], |, *, + and ?"
        ) from None


def _translated(pattern: str) -> Iterator[str]:
    """``pattern`` as the matcher writes it. Raises ValueError."""
    counted = wide = 0
    for token in _TOKEN.finditer(pattern):
        item, repeat, more = token["item"], token["repeat"] or "", token["more"]
        if item == "(":
            raise ValueError(
                f"{pattern!r}: groups are not supported: write alternatives out, as in 'one error|another', and ( as \\("
            )
        if more in ("+", "*"):
            raise ValueError(f"{pattern!r}: {repeat}{more} repeats a repetition: write {repeat}")
        if repeat.startswith("{"):
            few, _, many = repeat[1:-1].partition(",")
            counted += int(many or few or 0) * (1 + len(item) // 8)
            if counted > MOST_COUNTED:
                raise ValueError(f"{pattern!r}: the counts in braces add up to more than {MOST_COUNTED}: write * or + instead")
            repeat = repeat.replace("{,", "{0,")
        wide += sum(not part.isascii() or part.startswith("\\u") for part in _PART.findall(item)) if len(item) > 2 else 0
        if wide > MOST_WIDE:
            raise ValueError(f"{pattern!r}: more than {MOST_WIDE} characters in classes that are not ASCII: write . instead")
        yield _item(pattern, item) + repeat


def _item(pattern: str, item: str) -> str:
    if item in (".", "|", "^", "$"):
        return item
    if item.startswith("\\") and item[1] in _PLACES:
        return _PLACES[item[1]]
    if len(item) > 1 and item.startswith("["):
        return _class(pattern, item[1:-1])
    return _set(item) or _literal(_character(pattern, item))


def _class(pattern: str, inside: str) -> str:
    """A class of characters, ``inside`` of its brackets."""
    negated = inside.startswith("^")
    parts = _PART.findall(inside.removeprefix("^"))
    made, at = ["[^" if negated else "["], 0
    while at < len(parts):
        if at + 2 < len(parts) and parts[at + 1] == "-":
            made.append("-".join(_literal(_character(pattern, part)) for part in (parts[at], parts[at + 2])))
            at += 3
        else:
            # Within brackets it is a backspace.
            made.append(_set(parts[at]) or _literal("\b" if parts[at] == "\\b" else _character(pattern, parts[at])))
            at += 1
    return "".join([*made, "]"])


def _set(part: str) -> str | None:
    """The class that ``part`` stands for; None: it is one character."""
    return _SETS.get(part[1]) if len(part) == 2 and part.startswith("\\") else None


def _character(pattern: str, part: str) -> str:
    """The one character that ``part`` stands for. Raises ValueError."""
    if not part.startswith("\\"):
        return part
    if len(part) > 2:
        return chr(int(part[2:], 16))  # noqa: FURB166 - what is before it is no prefix of Python's
    if part[1] in _CONTROLS:
        return _CONTROLS[part[1]]
    if part[1].isalnum():
        raise ValueError(f"{pattern!r}: {part} is not supported: write the character itself, or its number as \\x7f or \\u20ac")
    return part[1]


def _literal(character: str) -> str:
    return character if character.isalnum() and character.isascii() else f"\\x{{{ord(character):X}}}"
