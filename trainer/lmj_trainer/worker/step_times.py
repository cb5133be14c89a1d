"""What a rank's steps take, smoothed: the one place where a number of one step becomes one of a rank."""

from collections import deque

_WINDOW = 9
"""Steps whose median is told: four of them may be as slow as they like (pages are swapped in, another process has a burst)."""
_LEAST = 3
"""With fewer nothing is told: the first steps of a view are slower, because memory and caches are cold."""


class StepTimes:
    """Of the newest steps of one view: in another, this rank may have another share of the work."""

    def __init__(self) -> None:
        self._compute: deque[float] = deque(maxlen=_WINDOW)
        self._waiting: deque[float] = deque(maxlen=_WINDOW)
        self._whole: deque[float] = deque(maxlen=_WINDOW)

    def begin(self) -> None:
        """A view begins."""
        self._compute.clear()
        self._waiting.clear()
        self._whole.clear()

    def add(self, compute: float, waiting: float, whole: float) -> None:
        """A step took so many seconds of work, so many in which this rank waited for others, and so many in all, with its update."""
        self._compute.append(compute)
        self._waiting.append(waiting)
        self._whole.append(whole)

    @property
    def compute(self) -> float | None:
        """Seconds of work that a step takes; None: it is not known yet."""
        return _median(self._compute)

    @property
    def waiting(self) -> float | None:
        """Seconds of a step in which this rank waits for others; None: it is not known yet."""
        return _median(self._waiting)

    @property
    def whole(self) -> float | None:
        """Seconds that a step takes in all; None: it is not known yet."""
        return _median(self._whole)


def _median(values: deque[float]) -> float | None:
    """The upper one of an even number, to the microsecond."""
    return round(sorted(values)[len(values) // 2], 6) if len(values) >= _LEAST else None
