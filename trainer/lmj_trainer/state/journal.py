"""What is to be recorded, on every rank, until it is: whichever of them is rank 0 in the next view can record it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import NamedTuple

from lmj_api.protocol import Evaluation

LIMIT = 1 << 16
"""Steps that are kept, some 20 MB: the oldest go first."""


class Line(NamedTuple):
    """A committed step."""

    step: int
    text: str
    """Its Progress as JSON."""
    time: float


class Journal:
    """Any thread may use it. What is asked of it at each step takes the same time however much waits."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._lines: dict[int, Line] = {}  # in the order of steps
        self._evaluations: dict[tuple[str, int], Evaluation] = {}
        self._written = self._durable = 0
        self._turn = 0

    def add(self, line: Line) -> None:
        """A step was committed. One that is known already stays as it is."""
        with self._lock:
            if line.step <= self._written or line.step in self._lines:
                return
            if self._lines and line.step < next(reversed(self._lines)):
                self._lines = {one.step: one for one in sorted((*self._lines.values(), line))}
            else:
                self._lines[line.step] = line
            self._bound()

    def merge(self, lines: Iterable[Line], evaluations: Iterable[Evaluation]) -> None:
        """What another rank knows; what is known here stays as it is."""
        with self._lock:
            both = {line.step: line for line in lines if line.step > self._written} | self._lines
            self._lines = dict(sorted(both.items()))
            self._bound()
            self._evaluations = {(e.split, e.step): e for e in evaluations} | self._evaluations

    def _bound(self) -> None:
        for step in list(islice(self._lines, max(0, len(self._lines) - self._limit))):
            del self._lines[step]

    def evaluated(self, result: Evaluation) -> None:
        """An evaluation was made; it takes the place of one of the same split and step."""
        with self._lock:
            self._evaluations[result.split, result.step] = result

    def forget(self, after: int) -> None:
        """Steps after ``after`` are done again."""
        with self._lock:
            self._forget(after)

    def begin(self, after: int) -> int:
        """As :meth:`forget`; who writes from now on, with the number that is returned, is the only one: an earlier one may hang."""
        with self._lock:
            self._forget(after)
            self._turn += 1
            return self._turn

    def _forget(self, after: int) -> None:
        while self._lines and (last := next(reversed(self._lines))) > after:
            del self._lines[last]
        self._evaluations = {key: e for key, e in self._evaluations.items() if e.step <= after}
        self._written, self._durable = min(self._written, after), min(self._durable, after)

    def durable(self, step: int, turn: int) -> None:
        """The lines of steps up to ``step`` would be there after a power cut: the others need not keep them."""
        with self._lock:
            if turn == self._turn:
                self._durable = max(self._durable, min(step, self._written))

    def written(self, step: int, turn: int) -> None:
        """The lines of steps up to ``step`` are in the file: they need not be written again by who has written them."""
        with self._lock:
            if turn == self._turn:
                self._written, self._durable = step, min(self._durable, step)
                self._drop(step)

    def settle(self, recorded: int) -> None:
        """Rank 0 says that everything of steps up to ``recorded`` is on storage."""
        with self._lock:
            self._written, self._durable = max(self._written, recorded), max(self._durable, recorded)
            self._drop(recorded)
            if self._evaluations:
                self._evaluations = {key: e for key, e in self._evaluations.items() if e.step > recorded}

    def _drop(self, step: int) -> None:
        while self._lines and (first := next(iter(self._lines))) <= step:
            del self._lines[first]

    def filed(self, results: Iterable[Evaluation], turn: int) -> None:
        """These evaluations are on storage."""
        with self._lock:
            for result in results if turn == self._turn else ():
                if self._evaluations.get((result.split, result.step)) is result:
                    del self._evaluations[result.split, result.step]

    @property
    def recorded(self) -> int:
        """Everything of steps up to this one is durable, as far as rank 0 knows, or has told."""
        with self._lock:
            return min([self._durable, *(e.step - 1 for e in self._evaluations.values())])

    @property
    def waits(self) -> bool:
        """Whether a line waits."""
        return bool(self._lines)

    def first(self, count: int, turn: int, after: int = 0) -> list[Line]:
        """The first ``count`` lines that wait, of steps after ``after``; none for one whose turn is over."""
        with self._lock:
            if turn != self._turn:
                return []
            if next(iter(self._lines), 0) > after:
                return list(islice(self._lines.values(), count))
            # Where storage is away those up to it are many, and those after it few.
            new = list(takewhile(lambda line: line.step > after, reversed(self._lines.values())))
            return new[::-1][:count]

    def lines(self) -> list[Line]:
        """All lines that wait."""
        with self._lock:
            return list(self._lines.values())

    def evaluations(self) -> list[Evaluation]:
        """All evaluations that wait."""
        with self._lock:
            return list(self._evaluations.values())

    def lacks(self, first: int, last: int) -> bool:
        """Whether a line of the steps ``first`` to ``last`` is not here."""
        with self._lock:
            return sum(first <= step <= last for step in self._lines) < last - first + 1
