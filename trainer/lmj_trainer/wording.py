"""Wording of error messages: a list that stays short, and one line."""

import signal
from collections.abc import Sequence

WARNING = "warning: "
"""How a line begins that reports something which is no error but may be a mistake."""


def listed(names: Sequence[str], most: int = 12) -> str:
    """``a, b, c``, cut after ``most``."""
    more = f", ... ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def one_line(error: object, most: int = 300) -> str:
    """The text of an error of a library as one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
