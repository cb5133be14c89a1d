"""How much one message may say: what an agent answers comes from whatever runs in its pod."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, FailFast, Field

LARGEST = 1 << 53
"""Whole numbers up to this are the same in every reader of JSON."""
CHARACTERS = 1000
LONG_CHARACTERS = 10_000

Count = Annotated[int, Field(ge=0, le=LARGEST)]
"""A whole number that counts or numbers something."""
Time = Annotated[float, Field(ge=0, le=253_402_300_799)]
"""Seconds since the epoch, to the end of the year 9999: what calendars know."""
Name = Annotated[str, Field(max_length=255)]
"""A name of a pod or a file, or an address: cut, it would be another's."""


def printable(text: str) -> str:
    """``text`` with a space for each character that a terminal could take for a command, or for the end of the line."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _time(text: str) -> str:
    try:
        datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError("a time is needed, as 2026-11-21T07:41:35Z") from error
    return text


Stamp = Annotated[str, AfterValidator(_time), Field(json_schema_extra={"format": "date-time"})]
"""A time, RFC 3339."""
Text = Annotated[str, AfterValidator(printable)]
"""Words for people: they are shown on terminals, and whatever runs in a pod may have said them."""
Line = Annotated[str, AfterValidator(lambda text: printable(_cut(text, CHARACTERS)))]
"""A line for people. What is longer is cut."""
LongLine = Annotated[str, AfterValidator(lambda text: printable(_cut(text, LONG_CHARACTERS)))]
"""The same, with a word on each rank in it."""
FIRST = FailFast()
"""On a list: the first wrong item is told, not all. To report a million costs a hundred times what it costs to read them."""
