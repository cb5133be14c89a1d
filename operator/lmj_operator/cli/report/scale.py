"""From values to places on a plot, and back to the round values that its axis names."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

WIDE = 50.0
"""Values that span more than this factor are drawn on a logarithmic scale, if they may be."""


@dataclass(frozen=True)
class Scale:
    """Values from ``low`` to ``high`` at places from ``begin`` to ``end``."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False
    whole: bool = False
    """Values are counts: there is nothing between two of them."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"a scale from {self.low} to {self.high} has no room")
        if self.logarithmic and self.low <= 0:
            raise ValueError(f"a logarithmic scale cannot begin at {self.low}")

    def at(self, value: float) -> float:
        """The place of ``value``."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)

    def ticks(self, about: int) -> list[float]:
        """Round values in the scale, ``about`` as many."""
        if self.logarithmic:
            return _decades(self.low, self.high, about)
        return [tick for tick in _even(self.low, self.high, about) if not self.whole or float(tick).is_integer()]


def from_zero(values: Iterable[float], begin: float, end: float) -> Scale:
    """A linear scale with room for 0 and all ``values``."""
    all_values = [0.0, *values]
    low, high = min(all_values), max(all_values)
    room = (high - low) * 0.05
    if room < 1e-30:
        return Scale(low, low + 1.0, begin, end)
    return Scale(low - room if low < 0 else low, high + room if high > 0 else high, begin, end)


def of_parts(values: Iterable[float], begin: float, end: float) -> Scale:
    """A scale for ``values`` that are parts of 1, such as accuracies: to 1, and from a tenth below the lowest on."""
    known = [min(max(value, 0.0), 1.0) for value in values]
    return Scale(max(0.0, math.floor((min(known, default=0.0) - 0.02) * 10) / 10), 1.0, begin, end)


def of_small(values: Iterable[float], begin: float, end: float) -> Scale:
    """A linear scale from 0 for positive ``values`` that may be far below 1."""
    highest = max(values, default=0.0)
    return Scale(0.0, highest * 1.05 if highest > 1e-30 else 1.0, begin, end)


def of_counts(values: Iterable[float], begin: float, end: float) -> Scale:
    """A linear scale from 0 for counts, with room above the highest."""
    return Scale(0.0, max([1.0, *values]) + 0.5, begin, end, whole=True)


def of_times(values: Iterable[float], begin: float, end: float) -> Scale:
    """A scale for positive ``values``: logarithmic when they span more than :data:`WIDE`, so that short and long ones are seen."""
    known = list(values)
    if not known or max(known) <= WIDE * min(known):
        return from_zero(known, begin, end)
    return Scale(min(known) / 1.3, max(known) * 1.3, begin, end, logarithmic=True)


def _even(low: float, high: float, about: int) -> list[float]:
    rough = (high - low) / max(about, 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Multiples of a power of ten below one are told exactly by the division.
    return [index / round(1 / step) if step < 1 else index * step for index in range(first, last + 1)]


CLOCK = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
_DAY = 86400


def clock_ticks(seconds: float, about: int) -> list[int]:
    """Round times from 0 to ``seconds``, at most about ``about``, as clocks divide them."""
    rough = seconds / max(about, 1)
    step = next((each for each in CLOCK if each >= rough), math.ceil(rough / _DAY) * _DAY)
    return list(range(0, math.floor(seconds) + 1, step))


def _decades(low: float, high: float, about: int) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= about:
            return inside
    every = math.ceil(len(inside) / max(about, 1))
    return inside[::every]
