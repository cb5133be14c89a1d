"""What moves cost over a long time: steps done, as part of those that an undisturbed job does."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from move import first_times


@dataclass(frozen=True)
class Stretch:
    """A stretch of a run."""

    moved: bool
    """A rank moved in it."""
    seconds: float
    steps: float


def progress(seen: Iterable[tuple[int, float]], at: float) -> float:
    """Steps that were done by ``at``, the one under way in part; of a time between the first and the last that was seen."""
    times = first_times(seen)
    place = bisect_right([when for when, _ in times], at)
    if not 0 < place < len(times):
        raise ValueError(f"{at} is not between two of the {len(times)} steps that were seen")
    (begin, step), (end, _) = times[place - 1], times[place]
    return step + (at - begin) / (end - begin)


def stretch(seen: Iterable[tuple[int, float]], begin: float, end: float, *, moved: bool) -> Stretch:
    """What was done from ``begin`` to ``end``."""
    seen = list(seen)
    return Stretch(moved, end - begin, progress(seen, end) - progress(seen, begin))


def goodput(stretches: Iterable[Stretch]) -> float:
    """Steps done in the stretches with a move, of those that the rate of the others would have made of the same time."""
    stretches = list(stretches)
    moved, quiet = ([s for s in stretches if s.moved is kind] for kind in (True, False))
    return _rate(moved) / _rate(quiet)


def _rate(stretches: list[Stretch]) -> float:
    return sum(s.steps for s in stretches) / sum(s.seconds for s in stretches)
