"""The right name for a wrong one: what every error about a name offers."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from lmj_api.bounds import printable

LONGEST = 64
"""Characters of a name for which another is looked for, and of those that it may mean: nobody mistypes a longer one."""
MOST = 1000
"""Names that are compared: to compare takes microseconds, and a folder, or a template, may hold a million of them."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that ``name`` most likely means, whatever its case, ``_`` and ``-``; None when none is close."""
    if len(name) > LONGEST:
        return None
    some = [candidate for candidate in islice(names, MOST) if len(candidate) <= LONGEST]
    plain = {_plain(candidate): candidate for candidate in reversed(some)}
    wanted = _plain(name)
    if wanted in plain:
        return plain[wanted]
    close = get_close_matches(wanted, plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """``; did you mean X?``, or an empty string when nothing is close: the end of an error message."""
    best = nearest(name, names)
    return f"; did you mean {printable(best)}?" if best is not None else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
