"""The windows of row groups in memory: the one in use, and the next, which a thread reads meanwhile. There are never more than these two."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lmj_trainer.beside import beside
from lmj_trainer.errors import OutageError
from lmj_trainer.wording import WARNING, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lmj_trainer.data.windowed import Window

Tables = list[Any]
"""A table of pyarrow for each group of a window, in its order."""

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0
"""Before what storage did not give is asked for again."""
_LOOK_SECONDS = 0.2
_QUIET_SECONDS = 5.0
"""For which training waits for rows before it says so."""


class _AbandonedError(Exception):
    """Nobody wants the window any more."""


@dataclass(eq=False)
class _Reading:
    """A window that is read, or was."""

    window: Window
    answer: Future[Tables]
    stop: threading.Event
    problem: list[str] = field(default_factory=list)
    """What storage said at last; nothing while it answers."""


class Windows:
    """For the compute thread; the thread that reads is its own."""

    def __init__(
        self,
        groups: Callable[[Window], Iterable[int]],
        read: Callable[[int, float], Any],
        room: float,
        what: str,
        patience: float,
        say: Callable[[str], None],
        aside: Callable[[], None] = lambda: None,
    ) -> None:
        """``groups``: those of a window. ``read``: a table of the group, which takes so many bytes at most; it may raise OSError, and is called
        again, or UserError. ``room``: bytes of a window. ``what`` is read, for people. ``patience``: seconds for which storage that gives
        nothing is asked again. ``say`` gets a warning when training waits. ``aside`` is called in the thread that reads.
        """
        self._groups, self._read, self._room, self._what = groups, read, room, what
        self._patience, self._say, self._aside = patience, say, aside
        self._held: tuple[Window, Tables] | None = None
        self._reading: _Reading | None = None

    def expect(self, window: Window) -> None:
        """Have ``window`` read, beside whatever is done: it will be wanted next."""
        if self._held is None or self._held[0] != window:
            self._begin(window)

    def hold(self, window: Window, check: Callable[[], None], begun: float | None = None) -> Tables:
        """The tables of ``window``, which take the place of those before. ``check`` is called while they are waited for, and may raise.
        ``begun``: when the wait began, for several windows of a step, by :func:`time.monotonic`; None: now.

        Raises OutageError when they are not there in time, and what reading them raises.
        """
        if self._held is not None and self._held[0] == window:
            return self._held[1]
        self._held = None  # before others take its room
        begun = time.monotonic() if begun is None else begun
        told = False
        while True:
            reading = self._begin(window)
            while not wait([reading.answer], _LOOK_SECONDS).done:
                check()
                waited = time.monotonic() - begun
                if waited >= self._patience:
                    raise OutageError(f"{self._what}: no rows for {waited:.0f} s: {self._said(reading)}")
                if waited >= _QUIET_SECONDS and reading.problem and not told:
                    told = True
                    self._say(f"{WARNING}training waits for {self._what}: {self._said(reading)}")
            try:
                tables = reading.answer.result()
            except OutageError:
                # It was read ahead, maybe long ago: whoever waits for it tries for as long as it may.
                self._reading = None
                if time.monotonic() - begun >= self._patience:
                    raise
                continue
            self._held, self._reading = (window, tables), None
            return tables

    def close(self) -> None:
        """Read nothing more."""
        if self._reading is not None:
            self._reading.stop.set()
            self._reading = None
        self._held = None

    def _begin(self, window: Window) -> _Reading:
        """The reading of ``window``; one of another is given up, and over before this one takes memory."""
        if self._reading is not None and self._reading.window == window:
            return self._reading
        stop, problem = threading.Event(), list[str]()
        # In a list, from which the thread takes it: nobody else is to keep what was read of another window.
        earlier = list[Future[Tables]]()
        if self._reading is not None:
            self._reading.stop.set()
            earlier.append(self._reading.answer)
            self._reading = None
        answer = beside(lambda: self._tables(window, earlier, stop, problem), "rows")
        self._reading = _Reading(window, answer, stop, problem)
        return self._reading

    def _tables(self, window: Window, earlier: list[Future[Tables]], stop: threading.Event, problem: list[str]) -> Tables:
        self._aside()
        if wait(earlier, self._patience).not_done:
            raise OutageError(f"{self._what}: storage does not answer")
        earlier.clear()
        tables, left = Tables(), self._room
        try:
            for group in self._groups(window):
                tables.append(self._persistently(partial(self._read, int(group), left), stop, problem))
                left -= tables[-1].nbytes
        except BaseException:
            tables.clear()  # whoever has the error has this frame
            raise
        return tables

    def _persistently(self, ask: Callable[[], Any], stop: threading.Event, problem: list[str]) -> Any:
        end, pause = time.monotonic() + self._patience, _FIRST_PAUSE_SECONDS
        while not stop.is_set():
            try:
                table = ask()
            except OSError as error:
                problem[:] = [one_line(error, 600)]
                if time.monotonic() + pause > end:
                    raise OutageError(f"{self._what}: {problem[0]}") from error
            else:
                problem.clear()
                return table
            stop.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        raise _AbandonedError

    def _said(self, reading: _Reading) -> str:
        """Why it is not there yet."""
        if reading.problem:
            return reading.problem[0]
        return "it is read slowly: lower dataset.streaming.rowGroups, or raise recovery.hangTimeoutSeconds"
