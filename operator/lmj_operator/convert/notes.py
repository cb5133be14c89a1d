"""What a conversion says beside its result: what was changed, what has no equivalent, what is left to fill in."""

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a note is about."""

    CHANGED = "changed"
    DROPPED = "no equivalent"
    FILL_IN = "fill in"
    CHECK = "check"


class ConvertError(Exception):
    """A job that cannot be converted: where, what, and what to do, in one line."""


@dataclass
class Notes:
    """The notes of one job, in the order in which they were made."""

    lines: list[str] = field(default_factory=list)

    def changed(self, where: str, what: str) -> None:
        """Something is another way in the result."""
        self._add(Kind.CHANGED, where, what)

    def dropped(self, where: str, what: str) -> None:
        """Something is not in the result."""
        self._add(Kind.DROPPED, where, what)

    def fill_in(self, where: str, what: str) -> None:
        """The result cannot run before somebody has written something there."""
        self._add(Kind.FILL_IN, where, what)

    def check(self, where: str, what: str) -> None:
        """Something that cannot be known from the file."""
        self._add(Kind.CHECK, where, what)

    def _add(self, kind: Kind, where: str, what: str) -> None:
        line = one_line(f"{kind}: {where}: {what}")
        if line not in self.lines:
            self.lines.append(line)


def one_line(text: str) -> str:
    """``text`` as one line for a terminal, whatever somebody wrote into a file."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
