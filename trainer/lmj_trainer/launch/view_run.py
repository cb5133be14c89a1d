"""One view of a launcher: from the view line, by way of the script's processes, to what came of it."""

import asyncio
import contextlib
import logging
import math
import signal
import time
from typing import Any

from lmj_api.protocol import STARTING_SCRIPT, EventKind, Progress
from lmj_api.view import View
from lmj_trainer.launch import environment, store
from lmj_trainer.launch.connection import BEAT_SECONDS, split_address
from lmj_trainer.launch.environment import Meeting, Node
from lmj_trainer.launch.here import Here
from lmj_trainer.launch.identity import Credentials
from lmj_trainer.launch.life import Pulse
from lmj_trainer.launch.line import BrokenError, Life, Line
from lmj_trainer.launch.memory.choice import step_in_memory, variables
from lmj_trainer.launch.memory.place import DIR
from lmj_trainer.launch.memory.transfer import FetchError
from lmj_trainer.launch.outcome import Completed, Failed, Lost, Outcome, Stopped
from lmj_trainer.launch.processors import shares, usable_processors
from lmj_trainer.launch.reporting import reporting
from lmj_trainer.launch.resume import step_of
from lmj_trainer.launch.words import Word, WordKind
from lmj_trainer.wording import signal_name

log = logging.getLogger("lmj.launch")

VERDICT_SECONDS = 5.0
"""A launcher whose process failed waits so long to be told whether that was the cause, or followed from another's."""
LOOK_SECONDS = 5.0
"""Between two looks whether the processes show signs of life; the agent is told of them no more often."""


class ViewRun:
    """Await :meth:`run` once. Whatever comes of it, none of its processes is left then."""

    def __init__(self, here: Here, view: View, credentials: Credentials) -> None:
        """``credentials``: this launcher's in the view."""
        command = here.job.spec.command
        assert command is not None
        self._here, self._view, self._command, self._credentials = here, view, command, credentials
        self._orders, self.node = here.agent.orders, Node.of(view, here.rank, command)
        self._running: dict[int, int] = {}
        """Process of this node, from its number at the starter."""
        self._store: int | None = None
        """Number of the process that serves the script's store, if that is here."""
        self._failed: int | None = None
        self._how = ""
        # A wait for others that is longer than what counts as a hang would be taken for one.
        self._wait = min(300.0, here.job.spec.recovery.hang_timeout_seconds / 3)
        self._pulse, self._looked = Pulse(), -math.inf
        self._alive, self._signed, self._joined, self._reported = -math.inf, -math.inf, False, False

    @property
    def life(self) -> Life:
        """For the view line."""
        return Life(lambda: time.monotonic() - self._alive < 1.5 * BEAT_SECONDS, self._sign)

    async def run(self, line: Line, patience: float) -> Outcome:
        """What came of it. ``patience``: seconds that all members have to come together. Raises StarterGoneError."""
        try:
            outcome = await self._run(line, patience)
            await self._here.starter.clear()
            if isinstance(outcome, Completed):
                # Told to the agent before the others leave: from here on the job has succeeded, whatever dies.
                self._here.agent.emit(EventKind.COMPLETED, "the script has ended")
                await self._here.agent.flush()
                line.complete()
            return outcome
        finally:
            line.close()

    async def _run(self, line: Line, patience: float) -> Outcome:
        here, number = self._here, self._view.number
        beginning = asyncio.create_task(line.begin(patience))
        if (outcome := await self._unless_left(beginning, line)) is not None:
            return outcome
        try:
            start = beginning.result()
        except BrokenError as error:
            return Lost(str(error), error.rank)
        # What was reported in views before says nothing of where the script begins now.
        first_step = max(step_of(start.resume), step_in_memory(start.memory))
        begins = Progress(step=first_step, steps=max(1, first_step), epoch=0.0, activity=STARTING_SCRIPT)
        here.agent.emit(EventKind.JOINED, self._view.reason, view=number, progress=begins)
        self._joined = True
        deciding = asyncio.create_task(line.next())
        deciding.add_done_callback(lambda _: here.changed.set())
        try:
            if (outcome := await self._fetched(start, line, deciding)) is not None:
                return outcome
            async with reporting(
                self._command, here.variables, first_step, self.node.number == 0, self._progressed, self._warn
            ) as extra:
                self._start(start, {**extra, **self._memory(start)})
                return await self._watch(line, deciding)
        finally:
            deciding.cancel()

    async def _unless_left(
        self, doing: asyncio.Task[Any], line: Line, deciding: asyncio.Task[Word] | None = None
    ) -> Outcome | None:
        """Wait until ``doing`` is done: None; or until the view is to be left, or its leader has decided so: then it is cancelled."""
        here = self._here
        doing.add_done_callback(lambda _: here.changed.set())
        try:
            while not doing.done():
                here.changed.clear()
                if (outcome := self._told_to_leave(line)) is not None:
                    return outcome
                if (reason := self._orders.stops(self._view.number)) is not None:
                    line.say(Word(kind=WordKind.LEFT, message=reason))
                    return Stopped(reason)
                if deciding is not None and deciding.done():
                    word = deciding.result()
                    return Stopped(word.message) if word.kind is WordKind.STOP else self._outcome(word)
                await here.changed.wait()
        finally:
            doing.cancel()
        return None

    async def _fetched(self, start: Word, line: Line, deciding: asyncio.Task[Word]) -> Outcome | None:
        """Have the snapshot here that all go on from: None; or what came of the view instead."""
        here, view = self._here, self._view
        giver = next((member for member in view.members if member.rank == start.giver), None)
        if here.fetcher is None or start.memory is None or giver is None:
            return None
        log.info("taking %s over from rank %d", start.memory, giver.rank)
        fetch = here.fetcher.fetch(view, giver, here.rank, self._credentials, start.memory, self._arriving)
        fetching = asyncio.create_task(fetch)
        if (outcome := await self._unless_left(fetching, line, deciding)) is not None:
            return outcome
        try:
            fetching.result()
        except FetchError as error:
            line.say(Word(kind=WordKind.LEFT, message=str(error)))
            return Lost(str(error))
        return None

    def _arriving(self) -> None:
        """More of a snapshot has come: that is a sign of life."""
        self._alive = time.monotonic()
        self._sign()

    def _told_to_leave(self, line: Line) -> Lost | None:
        reason = self._orders.broken(self._view.number)
        if reason is None:
            return None
        line.say(Word(kind=WordKind.LEFT, message=reason))
        return Lost(reason)

    def _memory(self, start: Word) -> dict[str, str]:
        folder, memory = self._here.memory, self._command.memory
        return {} if folder is None or memory is None else variables(folder, memory.every, self._wait, start.memory)

    def _start(self, start: Word, extra: dict[str, str]) -> None:
        here, command, node = self._here, self._command, self.node
        meeting = Meeting(split_address(self._view.members[0].address)[0], start.port, start.resume)
        argv = environment.arguments(command, start.resume)
        bound: list[list[int]] = shares(here.cores, node.processes) if command.bind_cores else [[]] * node.processes
        processors = usable_processors(here.cores)
        if node.number == 0 and environment.has_store(command, node, here.variables):
            own = {name: value for name, value in here.variables.items() if name != DIR}
            self._store = here.starter.start([store.PROGRAM, meeting.host, str(meeting.port)], "/", own, [])
        for local in range(node.processes):
            told = environment.variables(here.variables, here.job, node, local, meeting, processors, extra)
            number = here.starter.start(argv, command.working_dir or ".", told, bound[local])
            self._running[number] = local

    async def _watch(self, line: Line, deciding: asyncio.Task[Word]) -> Outcome:
        """Until something is decided."""
        here, asked, deadline = self._here, False, math.inf
        while True:
            here.changed.clear()
            if (outcome := self._told_to_leave(line)) is not None:
                return outcome
            if deciding.done():
                word = deciding.result()
                return await self._stop(word.message) if word.kind is WordKind.STOP else self._outcome(word)
            here.starter.require()
            while here.starter.ends:
                self._ended(*here.starter.ends.popleft(), line)
            if self._failed is not None:
                deadline = min(deadline, time.monotonic() + VERDICT_SECONDS)
                if time.monotonic() >= deadline:
                    return Failed(self._failed)  # the leader hangs
            if (reason := self._orders.stops(self._view.number)) is not None and not asked:
                asked = True
                line.say(Word(kind=WordKind.STOP, message=reason))
            await self._news(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            self._look()

    async def _news(self, seconds: float) -> None:
        """Wait until there is some, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._here.changed.wait()

    def _ended(self, number: int, code: int, line: Line) -> None:
        """Take note that process ``number`` ended; the others of this node end with one that failed."""
        local = self._running.pop(number, None)
        if (local is None and number != self._store) or self._failed is not None:
            return
        if local is not None and code == 0:
            if not self._running:
                line.say(Word(kind=WordKind.DONE))
            return
        self._failed = code
        how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        process = (
            f"rank {self.node.rank(local)} of the script (process {local}"
            if local is not None
            else "the script's store (a process"
        )
        self._how = f"{process} of rank {self._here.rank}) {how}"
        for other in self._running:
            self._here.starter.signal(other, signal.SIGKILL)
        line.say(Word(kind=WordKind.FAILED, message=self._how))

    def _outcome(self, word: Word) -> Outcome:
        if word.kind is WordKind.COMPLETED:
            return Completed()
        if word.rank == self._here.rank and self._failed is not None:
            self._warn(self._how)
            return Failed(self._failed)
        return Lost(word.message, word.rank if word.rank >= 0 and word.rank != self._here.rank else None)

    async def _stop(self, reason: str) -> Outcome:
        """Have the processes save and end, as long as they may."""
        here = self._here
        for number in self._running:
            here.starter.signal(number, signal.SIGTERM)
        end = time.monotonic() + self._command.save_seconds
        while True:
            here.changed.clear()
            here.starter.require()
            while here.starter.ends:
                self._running.pop(here.starter.ends.popleft()[0], None)
            left = end - time.monotonic()
            if not self._running or left <= 0 or self._orders.broken(self._view.number) is not None:
                return Stopped(reason)
            await self._news(min(left, LOOK_SECONDS))
            self._look()

    def _progressed(self, progress: Progress) -> None:
        self._reported = True
        if progress.step == 0:
            # The Trainer says so as it begins, wherever it goes on.
            progress = progress.model_copy(update={"activity": STARTING_SCRIPT})
        # What all of them report is the same: one tells it.
        if self.node.number == 0:
            self._here.agent.emit(EventKind.COMMITTED, progress=progress)

    def _look(self) -> None:
        """Whether the processes show signs of life, now and then."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        reported, self._reported = self._reported, False
        pids = self._here.starter.pids
        if self._pulse.lively([pids[number] for number in self._running if number in pids], now) or reported:
            self._alive = now
            self._sign()

    def _sign(self) -> None:
        if self._joined and time.monotonic() - self._signed >= LOOK_SECONDS:
            self._signed = time.monotonic()
            self._here.agent.emit(EventKind.PREPARING)  # it says nothing that people have to know

    def _warn(self, message: str) -> None:
        self._here.agent.emit(EventKind.WARNING, message)
