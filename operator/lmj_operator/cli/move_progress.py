"""How far moves are, for the user who waits for them: bars on a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from lmj_api.status import FollowerStatus, JobStatus
from lmj_operator.cli.lines import changes
from lmj_operator.plan.report.conditions import copied

LINE_SECONDS = 5.0
"""Without a terminal a copy that goes on is told so often."""


class MoveProgress:
    """Tells what changed in a job's status since it was last shown, about the moves of ``ranks``."""

    def __init__(self, ranks: Sequence[int], console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """``console``: None is standard output. ``clock``: in seconds."""
        self._ranks, self._clock = frozenset(ranks), clock
        self._console = console or Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[facts]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[tuple[int, int], TaskID] = {}
        self._told: dict[tuple[int, int], tuple[str, float]] = {}
        """Of each follower: the state that a line was made for, and when."""

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()

    def show(self, before: JobStatus, after: JobStatus) -> None:
        """``after`` was seen, and ``before`` was the last."""
        mine = [follower for follower in after.followers if follower.rank in self._ranks]
        for follower in mine:
            self._line(follower)
            self._bar(follower)
        there = {(follower.rank, follower.serial) for follower in mine}
        for key in [key for key in self._tasks if key not in there]:
            self._bars.remove_task(self._tasks.pop(key))
        known = {(move.rank, move.serial, move.given_up) for move in before.moves}
        late = [move for move in after.moves if move.rank in self._ranks and move.strategy == "Checkpoint"]
        for move in late:
            if move.given_up is not None and (move.rank, move.serial, move.given_up) not in known:
                self._say(f"rank {move.rank}: {move.given_up}")
        for line in changes(before, after):
            self._say(line)

    def _line(self, follower: FollowerStatus) -> None:
        key, now = (follower.rank, follower.serial), self._clock()
        state, told = self._told.get(key, ("", 0.0))
        copies = follower.state == "Copying" and not self._console.is_terminal
        if follower.state == state and not (copies and now - told >= LINE_SECONDS):
            return
        self._told[key] = follower.state, now
        self._say(f"rank {follower.rank}: {follower.pod} is {follower.state.lower()}{copied(follower)}")

    def _bar(self, follower: FollowerStatus) -> None:
        key, at = (follower.rank, follower.serial), follower.copied
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(f"rank {follower.rank}", total=None, facts="")
        total, done = (at.size, at.done) if at is not None and at.done else (None, 0)
        self._bars.update(self._tasks[key], total=total, completed=done, facts=f"{follower.state.lower()}{copied(follower)}")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False)
