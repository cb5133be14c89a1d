"""The order of rows that are read by groups while a job trains: a pure function of the seed, the epoch and how many rows each group has.

Where all rows are at hand, an epoch is a permutation of them. Here it is one of the groups, cut into windows of so many groups, and in each
window one of its rows. So what is in memory is a window, and the rows of any step are found without those before it.
"""

from dataclasses import dataclass

import numpy as np

from lmj_trainer.data.order import Indices, epoch_order

_TAG = 0x57494E44


@dataclass(frozen=True, order=True)
class Window:
    """Some groups of an epoch."""

    epoch: int
    number: int
    """In the epoch, from 0 on."""


@dataclass(frozen=True, eq=False)
class Found:
    """Where rows of an epoch's order are, those that lie in one window."""

    window: Window
    members: Indices
    """Which of the window's groups each row is of ``[rows]``, from 0 on."""
    rows: Indices
    """Its number in that group ``[rows]``, from 0 on."""


class Windowed:
    """The order of all epochs."""

    def __init__(self, counts: Indices, size: int, seed: int) -> None:
        """``counts``: rows of each group, each at least one; ``size``: groups of a window, the last of an epoch may have fewer."""
        if len(counts) == 0 or counts.min() < 1 or size < 1:
            raise ValueError(f"no order of {len(counts)} groups in windows of {size}: each group needs rows")
        self._counts, self._size, self._seed = counts, size, seed
        self.rows = int(counts.sum())
        """Of an epoch."""
        self.windows = -(-len(counts) // size)
        """Of an epoch."""
        self._newest: tuple[int, Indices] | None = None
        """An epoch, and where its windows begin."""
        self._mixed: tuple[Window, Indices] | None = None
        """A window, and the order of its rows."""

    def groups(self, window: Window) -> Indices:
        """Numbers of the groups of ``window``, in the order in which they count."""
        order = epoch_order(self._seed, window.epoch, len(self._counts))
        return order[window.number * self._size : (window.number + 1) * self._size]

    def begin(self, window: Window) -> int:
        """Where ``window`` begins in the order of its epoch."""
        return int(self._begins(window.epoch)[window.number])

    def at(self, epoch: int, place: int) -> Window:
        """The window with the row at ``place`` of ``epoch``."""
        if not 0 <= place < self.rows:
            raise ValueError(f"no row {place} in an epoch of {self.rows}")
        return Window(epoch, int(np.searchsorted(self._begins(epoch), place, side="right")) - 1)

    def find(self, epoch: int, first: int, count: int) -> list[Found]:
        """Where the ``count`` rows from place ``first`` of ``epoch`` on are, in this order."""
        found, place = [], first
        while place < first + count:
            window = self.at(epoch, place)
            begin, end = self._begins(epoch)[window.number : window.number + 2]
            until = min(int(end), first + count)
            inside = self._shuffled(window)[place - begin : until - begin]
            # Of the window's rows, in the order of its groups, the first of each group.
            starts = np.cumsum([0, *self._counts[self.groups(window)]], dtype=np.int64)
            members = np.searchsorted(starts, inside, side="right") - 1
            found.append(Found(window, members.astype(np.int64), inside - starts[members]))
            place = until
        return found

    def _shuffled(self, window: Window) -> Indices:
        if self._mixed is None or self._mixed[0] != window:
            # RandomState, not Generator: its stream is frozen, so a run can be resumed under another version of numpy.
            draw = np.random.RandomState([self._seed, window.epoch, window.number, _TAG])
            rows = int(self._counts[self.groups(window)].sum())
            self._mixed = window, draw.permutation(rows).astype(np.int64, copy=False)
        return self._mixed[1]

    def _begins(self, epoch: int) -> Indices:
        """Where windows of ``epoch`` begin in its order, and its end ``[windows + 1]``."""
        if self._newest is None or self._newest[0] != epoch:
            order = epoch_order(self._seed, epoch, len(self._counts))
            firsts = np.arange(0, len(order), self._size)
            rows = np.add.reduceat(self._counts[order], firsts)
            self._newest = epoch, np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        return self._newest[1]
