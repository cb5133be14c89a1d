"""The right name for a wrong one: what every error about a name offers."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that ``name`` most likely means, whatever its case, ``_`` and ``-``; None when none is close."""
    plain = {_plain(candidate): candidate for candidate in reversed(list(names))}
    wanted = _plain(name)
    if wanted in plain:
        return plain[wanted]
    close = get_close_matches(wanted, plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """``; did you mean X?``, or an empty string when nothing is close: the end of an error message."""
    best = nearest(name, names)
    return f"; did you mean {best}?" if best is not None else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
