"""Lists for people: a job may have a thousand ranks, and a sentence on each is no sentence any more, nor fits into a status."""

from collections.abc import Iterable, Sequence

NAMED = 8
"""So many are told."""


def few(things: Sequence[object], separator: str = ", ") -> str:
    """The first of ``things``, and how many more there are: ``0, 1, 2 and 7 more``."""
    told = separator.join(map(str, things[:NAMED]))
    return f"{told} and {len(things) - NAMED} more" if len(things) > NAMED else told


def of_ranks(ranks: Iterable[int]) -> str:
    """``rank 3``, or ``ranks 3, 4``."""
    which = list(ranks)
    return f"rank{'s' if len(which) > 1 else ''} {few(which)}"
