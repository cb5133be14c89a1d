"""A line of a shell, as far as it is a list of plain commands."""

import re
import shlex
from dataclasses import dataclass
from typing import Final

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_MORE: Final = frozenset("|<>()&`{}")
"""Outside of quotes: pipes, redirections, sub-shells, background jobs."""
_ENDS: Final = frozenset(";\n")


@dataclass(frozen=True)
class Word:
    """A word of a command: as it is written, and without its quotes."""

    raw: str
    value: str

    @property
    def is_plain(self) -> bool:
        """Whether the shell makes nothing else of it: no variable, no pattern, no home folder."""
        unquoted = re.sub(r"'[^']*'", "", self.raw)
        bare = re.sub(r'"(\\.|[^"\\])*"', "", unquoted)
        return not re.search(r"[$`]", unquoted) and not re.search(r"[*?\[]|^~", bare)

    @property
    def assigned(self) -> tuple[str, str] | None:
        """Name and value, where it is written as an assignment; None: it is none."""
        match = _ASSIGNMENT.fullmatch(self.value)
        return (match[1], match[2]) if match is not None and self.raw.startswith(f"{match[1]}=") else None


@dataclass(frozen=True)
class Command:
    """A command, and what follows it: ``&&``, ``;``, a line's end, or nothing."""

    words: tuple[Word, ...]
    end: str = ""


def commands(line: str) -> list[Command] | None:
    """The commands of ``line`` that run one after the other (``a && b``, ``a; b``, a line each); None: it is more than that."""
    found: list[Command] = []
    words: list[Word] = []
    for token in _tokens(line.replace("\\\n", " ")):
        if token is None:
            return None
        if token not in ("&&", *_ENDS):
            value = _value(token)
            if value is None:
                return None
            words.append(Word(token, value))
        elif words:
            found.append(Command(tuple(words), token))
            words = []
    return [*found, Command(tuple(words))] if words else found


def _value(raw: str) -> str | None:
    try:
        return "".join(shlex.split(raw))
    except ValueError:
        return None


def _tokens(line: str) -> list[str | None]:
    """Words as they are written and what ends commands; None in it: something else."""
    found: list[str | None] = []
    word, quote, at = "", "", 0
    while at < len(line):
        letter = line[at]
        step = 2 if letter == "\\" and quote != "'" else 1
        if step == 2:
            word += line[at : at + 2]
        elif quote:
            word += letter
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            word, quote = word + letter, letter
        elif line.startswith("${", at) and "}" in line[at:]:
            step = line.index("}", at) + 1 - at
            word += line[at : at + step]
        elif letter.isspace() or letter in _ENDS or line.startswith("&&", at):
            found += [word] if word else []
            word = ""
            if line.startswith("&&", at):
                found.append("&&")
                step = 2
            elif letter in _ENDS:
                found.append(letter)
        elif letter in _MORE or (letter == "#" and not word):
            return [*found, None]
        else:
            word += letter
        at += step
    return [*found, None] if quote else [*found, *([word] if word else [])]
