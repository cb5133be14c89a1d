"""What was recorded over the steps, as lines to draw: pure functions of records."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeGuard

LONGEST = 2000
"""Most points of a line that is drawn."""
SMOOTH = 400
"""Points of a smoothed line."""

Point = tuple[float, float]
"""A step, and the value there; both finite."""


@dataclass(frozen=True, slots=True)
class Record:
    """A line of ``metrics.jsonl``."""

    step: int
    """The step, 1 for the first."""
    loss: float
    """Mean loss of the step's global batch; may be NaN or infinite."""
    time: float
    """When it was committed, seconds since the epoch; NaN: the line does not say."""
    rate: float = math.nan
    """The step's learning rate; NaN: the line does not say."""
    replicas: int | None = None
    """Replicas that took the step; None: the line does not say, because the job has one shard."""


def ordered(records: Iterable[Record]) -> list[Record]:
    """``records`` by step; of several of one step the last, which is the one that counts."""
    return sorted({record.step: record for record in records}.values(), key=lambda record: record.step)


def drawable(value: float | None) -> TypeGuard[float]:
    """Whether ``value`` can stand on a plot: a number, finite, and not so large that differences overflow."""
    return value is not None and math.isfinite(value) and abs(value) < 1e30


def losses(records: Sequence[Record]) -> list[Point]:
    """The loss at each step where it is a number."""
    return [(record.step, record.loss) for record in records if drawable(record.loss)]


def rates(records: Sequence[Record]) -> list[Point]:
    """The learning rate at each step where it is known."""
    return [(record.step, record.rate) for record in records if drawable(record.rate) and record.rate >= 0]


def replicas(records: Sequence[Record]) -> list[Point]:
    """How many replicas took each step, where it is known: the corners of a line that rises and falls between two steps."""
    points: list[Point] = []
    known = [(record.step, record.replicas) for record in records if record.replicas is not None]
    for index, (step, count) in enumerate(known):
        first, last = index == 0, index == len(known) - 1
        before = None if first else known[index - 1][1]
        if not first and before is not None and before != count:
            points.append((step, before))
        if first or last or before != count:
            points.append((step, count))
    return points


def smooth(points: Sequence[Point], places: int = SMOOTH) -> list[Point]:
    """The mean of what lies around each of ``places`` points of the line, a fiftieth of it each. Nothing when there are too few to smooth."""
    half = len(points) // 100
    if half < 2:
        return []
    at = sorted({round(index * (len(points) - 1) / (places - 1)) for index in range(places)})
    return [(points[index][0], _mean(points[max(0, index - half) : index + half + 1])) for index in at]


def _mean(points: Sequence[Point]) -> float:
    return math.fsum(value for _, value in points) / len(points)


def step_times(records: Sequence[Record]) -> list[Point]:
    """At each step but the first: seconds since the record before it. No point where the clock stood still or went back."""
    points = ((after.step, after.time - before.time) for before, after in pairwise(records))
    return [(step, seconds) for step, seconds in points if drawable(seconds) and seconds >= 1e-9]


def thin(points: Sequence[Point], limit: int = LONGEST) -> list[Point]:
    """At most ``limit`` (4 or more) of ``points``, in order: the first, the last, and of each part between the lowest and the highest."""
    if limit < 4:
        raise ValueError(f"limit {limit}: a line that keeps its ends and its extremes has at least 4 points")
    if len(points) <= limit:
        return list(points)
    parts, inner = (limit - 2) // 2, range(1, len(points) - 1)
    kept = {0, len(points) - 1}
    for part in range(parts):
        indexes = inner[part * len(inner) // parts : (part + 1) * len(inner) // parts]
        kept.add(min(indexes, key=lambda index: points[index][1]))
        kept.add(max(indexes, key=lambda index: points[index][1]))
    return [points[index] for index in sorted(kept)]
