"""The training rows of a job, read where they lie: those of any place in the order, without those before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_trainer.data.rows import Rows
from lmj_trainer.data.windowed import Window, Windowed
from lmj_trainer.store.registry import open_place
from lmj_trainer.streaming.files import Files
from lmj_trainer.streaming.index import window_bytes
from lmj_trainer.streaming.rows import joined, rows_of
from lmj_trainer.streaming.source import FIELD, Open, Source
from lmj_trainer.streaming.windows import Tables, Windows

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec
    from lmj_trainer.data.windowed import Found
    from lmj_trainer.streaming.index import Index

_OF_A_HANG = 0.8
"""The part of ``recovery.hangTimeoutSeconds`` for which training waits for rows: this worker is to say what is wrong before its peers say that
it is. They wait for 0.9 of it."""


class Stream:
    """For the compute thread."""

    def __init__(
        self,
        spec: JobSpec,
        index: Index,
        used: Callable[[int], int],
        say: Callable[[str], None],
        aside: Callable[[], None] = lambda: None,
        open_: Open = open_place,
    ) -> None:
        """``used``: how many rows of an epoch are trained on, from its first one on. ``say`` gets a warning when training waits for rows.
        ``aside`` is called in the thread that reads ahead. UserError: the place cannot be opened here.
        """
        dataset = spec.dataset
        assert dataset.streaming is not None
        self._index, self._used = index, used
        self._text, self._label = tuple(dataset.columns), dataset.label
        self._order = Windowed(index.counts, dataset.streaming.row_groups, spec.training.seed)
        self._files = Files(Source.open(dataset.source, open_), index, self._text, self._label)
        patience, what = _OF_A_HANG * spec.recovery.hang_timeout_seconds, f"{FIELD} {dataset.source}"
        self._windows = Windows(self._order.groups, self._read, window_bytes(dataset.streaming), what, patience, say, aside)

    def expect(self, epoch: int, place: int) -> None:
        """The rows at ``place`` of ``epoch`` are wanted soon: begin to read them, and return."""
        if place < self._used(epoch):
            self._windows.expect(self._order.at(epoch, place))

    def rows(self, epoch: int, first: int, count: int, check: Callable[[], None] = lambda: None) -> Rows:
        """The ``count`` rows from place ``first`` of ``epoch`` on, in its order; what comes after them is read ahead then.

        ``check`` is called while they are waited for, and may raise. Raises OutageError when storage does not give them in time, and UserError:
        what is there is not what the run began with, or broken.
        """
        # Peers wait for the step, whatever number of windows its rows are of.
        parts, begun = list[Rows](), time.monotonic()
        for found in self._order.find(epoch, first, count):
            tables = self._windows.hold(found.window, check, begun)
            if (after := self._after(found.window)) is not None:
                self._windows.expect(after)
            parts.append(self._taken(found, tables))
        return joined(parts)

    def close(self) -> None:
        """Read nothing more."""
        self._windows.close()

    def _after(self, window: Window) -> Window | None:
        """The window that is wanted after ``window``; None: training is over by then."""
        following = Window(window.epoch, window.number + 1)
        if following.number < self._order.windows and self._order.begin(following) < self._used(window.epoch):
            return following
        return Window(window.epoch + 1, 0) if self._used(window.epoch + 1) > 0 else None

    def _read(self, number: int, most: float) -> Any:
        return self._files.read(*self._index.groups[number], most)

    def _taken(self, found: Found, tables: Tables) -> Rows:
        """Those rows of the window that were found in it."""
        groups, parts, places = self._order.groups(found.window), list[Rows](), list[Any]()
        for member in np.unique(found.members):
            which = np.flatnonzero(found.members == member)
            number = int(groups[member])
            called = self._files.called(self._index.groups[number][0])
            parts.append(rows_of(self._index, number, called, tables[member], self._text, self._label, found.rows[which]))
            places.append(which)
        return joined(parts).take(np.argsort(np.concatenate(places)))
