"""Wording of error messages: a list that stays short, and one line."""

import signal
from collections.abc import Sequence

from lmj_api.bounds import printable

WARNING = "warning: "
"""How a line begins that reports something which is no error but may be a mistake."""
_LONGEST_NAME = 60
"""Characters of a name in a list."""


def listed(names: Sequence[str], most: int = 12) -> str:
    """``a, b, c``, cut after ``most``. Names may be anything that a file has where names are expected."""
    more = f", ... ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(one_line(name, _LONGEST_NAME) for name in names[:most]) + more


def one_line(error: object, most: int = 300) -> str:
    """The text of an error of a library, or a name of somebody's file, as one line that any terminal can show."""
    text = " ".join(printable(str(error)).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
