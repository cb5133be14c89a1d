"""What moves cost over a long time: the training that each takes, as part of the time from one to the next."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from move import first_times


@dataclass(frozen=True)
class Loss:
    """What one move took from training."""

    seconds: float
    """Of the stretch in which anything was done for it: from the request until its old pod is gone."""
    steps: float
    """Done in it."""
    usual: float
    """Steps a second just before and after it: a shared machine is another one a few minutes later."""

    @property
    def lost(self) -> float:
        """Seconds of training."""
        return self.seconds - self.steps / self.usual


def progress(seen: Iterable[tuple[int, float]], at: float) -> float:
    """Steps that were done by ``at``, the one under way in part; of a time between the first and the last that was seen."""
    times = first_times(seen)
    place = bisect_right([when for when, _ in times], at)
    if not 0 < place < len(times):
        raise ValueError(f"{at} is not between two of the {len(times)} steps that were seen")
    (begin, step), (end, _) = times[place - 1], times[place]
    return step + (at - begin) / (end - begin)


def loss(seen: Iterable[tuple[int, float]], begin: float, end: float, beside: float) -> Loss:
    """What the move from ``begin`` to ``end`` took, against ``beside`` seconds before it and as many after it."""
    seen = list(seen)
    edges = [progress(seen, at) for at in (begin - beside, begin, end, end + beside)]
    return Loss(end - begin, edges[2] - edges[1], (edges[1] - edges[0] + edges[3] - edges[2]) / (2 * beside))


def goodput(losses: Iterable[Loss], every: float) -> float:
    """What is left of the training time with such a move every so many seconds, medians."""
    return 1 - statistics.median(each.lost for each in losses) / every
