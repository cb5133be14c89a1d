"""What two memories have in common: parameters by name, wherever they lie in each. All of it, where both are of one stage of one cut."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALIGN = 16
"""Elements: a cache line, so that no two tensors share one."""
CHUNK = 1 << 15
"""Elements of a parameter that change at once, for each thread: four arrays of it, and as much for undoing, fit into a core's second cache."""


@dataclass(frozen=True)
class Placed:
    """A parameter, and where it lies in each of the arrays."""

    name: str
    shape: tuple[int, ...]
    start: int
    """Its first element."""

    @property
    def count(self) -> int:
        """Elements of it."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """Where the next one may begin: behind it are zeros up to here."""
        return self.start + -(-self.count // ALIGN) * ALIGN

    @property
    def units(self) -> Iterator[tuple[slice, slice]]:
        """What changes at once, whatever the cut: a span of the arrays, with the zeros behind it, and of the parameter."""
        for first in range(0, self.count, CHUNK):
            last = min(first + CHUNK, self.count)
            end = self.stop if last == self.count else self.start + last
            yield slice(self.start + first, end), slice(first, last)


class Share:
    """Parameters that one memory has of another, in the order in which they lie in the arrays of the one that they are copied from."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        self.placed = tuple(sorted(placed, key=lambda each: each.start))
        self.runs = _joined([slice(each.start, each.stop) for each in self.placed])
        """Spans that lie together."""
        self.units = [span for each in self.placed for span, _ in each.units]
        """What is copied at once, at least: no unit is of two steps."""

    @property
    def size(self) -> int:
        """Elements of each array, with the zeros between."""
        return sum(run.stop - run.start for run in self.runs)

    def spans(self, units: int, part: int) -> list[slice]:
        """The first ``units`` units, in spans of at most ``part`` elements."""
        runs = self.runs if units == len(self.units) else _joined(self.units[:units])
        return [slice(at, min(at + part, run.stop)) for run in runs for at in range(run.start, run.stop, part)]


class Translation:
    """From where a share lies in its source's arrays to where it lies here."""

    def __init__(self, theirs: Sequence[Placed], mine: Sequence[Placed]) -> None:
        """Each of ``theirs`` is one of ``mine``."""
        here = {each.name: each.start for each in mine}
        self._moved: list[tuple[slice, int]] = []
        for each in sorted(theirs, key=lambda each: each.start):
            offset = here[each.name] - each.start
            last = self._moved[-1] if self._moved else None
            if last is not None and last[0].stop == each.start and last[1] == offset:
                self._moved[-1] = slice(last[0].start, each.stop), offset
            else:
                self._moved.append((slice(each.start, each.stop), offset))

    def here(self, span: slice) -> list[tuple[slice, slice]]:
        """Where ``span`` of the source's arrays lies here, each piece with its place within the span."""
        pieces = []
        for run, offset in self._moved:
            start, stop = max(run.start, span.start), min(run.stop, span.stop)
            if start < stop:
                pieces.append((slice(start + offset, stop + offset), slice(start - span.start, stop - span.start)))
        return pieces


def _joined(spans: Sequence[slice]) -> list[slice]:
    """``spans``, which are in order, with those that follow each other as one."""
    joined: list[slice] = []
    for span in spans:
        if joined and joined[-1].stop == span.start:
            joined[-1] = slice(joined[-1].start, span.stop)
        else:
            joined.append(span)
    return joined
