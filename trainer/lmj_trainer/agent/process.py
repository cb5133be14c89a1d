"""One worker process: its start, its line of events and commands, its output, and its end."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from pydantic import ValidationError

from lmj_api.fold import IllegalEventError
from lmj_api.protocol import Command, Event, EventKind, Exit
from lmj_trainer.agent.ends import Ends
from lmj_trainer.agent.exits import describe
from lmj_trainer.agent.launch import Handles
from lmj_trainer.agent.launcher import Launcher
from lmj_trainer.agent.tail import Lines, Tail

LONGEST_LINE = 16 << 20
"""Bytes of an event: the confusion matrix of 2,000 labels fits."""
LEAVE_SECONDS = 30.0
"""A worker that closed its line has so long to exit."""
OUTPUT_SECONDS = 2.0
"""Output of a dead worker is read for so long at most: a grandchild that escaped its group may hold the pipe."""


EXPLAIN_SECONDS = 1.0
"""A worker that is asked where it stands has so long to begin to say so,"""
PAUSE_SECONDS = 0.1
"""and has ended when it says nothing for so long."""

NOT_STARTED = 127
"""Exit code of a worker that could not be started at all: a shell's for a command that it cannot run."""


class WorkerProcess:
    """A worker and its process group, from before its start. Await :meth:`run` once."""

    def __init__(self, incarnation: int, launcher: Launcher, inherited: Mapping[str, int]) -> None:
        """``inherited``: options of its command line that name an open file, beside ``--fd``, its line to the agent."""
        self._incarnation = incarnation
        self._launcher = launcher
        self._inherited = inherited
        self._loop = asyncio.get_running_loop()
        self._pid: int | None = None
        self._killed = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._early: list[bytes] = []
        self._reaped = False
        self._reason: str | None = None
        self._stderr = Tail()
        self._said = asyncio.Event()
        """Something came on its stderr, or its end."""

    def send(self, command: Command) -> None:
        """Tell the worker, when it is started. One that is gone, or going, hears nothing: its end is told by :meth:`run`."""
        line = command.to_json().encode() + b"\n"
        if self._writer is None:
            self._early.append(line)
        elif not self._writer.is_closing():
            self._writer.write(line)

    def kill(self, reason: str) -> None:
        """End the whole process group at once, or the start; ``reason`` (the first one given) becomes the message of its exit.

        Any thread may.
        """
        self._reason = self._reason or reason
        if self._pid is not None:
            self._kill_group(self._pid)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: so is the agent, and nothing is started any more
                self._loop.call_soon_threadsafe(self._killed.set)

    async def explain(self, reason: str) -> None:
        """Have it write to its stderr where each of its threads stands, if it still can. It is killed next, for ``reason``."""
        if self._pid is None or self._reaped:
            return
        self._reason = self._reason or reason
        wait = EXPLAIN_SECONDS
        self._said.clear()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGUSR1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * EXPLAIN_SECONDS):
                while not self._reaped:  # the signal may have ended it: then it says nothing more
                    async with asyncio.timeout(wait):
                        await self._said.wait()
                    self._said.clear()
                    wait = PAUSE_SECONDS

    async def run(self, on_start: Callable[[int], None], on_event: Callable[[Event], None], warn: Callable[[str], None]) -> Exit:
        """Start it and tell ``on_start`` its process id; give every event to ``on_event``, in order; tell how it ended.

        A line that is no event, or one for which ``on_event`` raises IllegalEventError, ends the worker; another error does so
        too, and is raised here. ``warn`` hears of a start that was not what it should be.
        """
        try:
            ends = Ends.make()
        except OSError as error:
            return _not_started(error)
        try:
            try:
                pid = await self._started_as(ends, warn)
            except OSError as error:
                return _not_started(error)
            if pid is None:
                return describe(-signal.SIGKILL, [], self._reason)
            self._pid = pid
            if self._reason is not None:  # given while the number was not known
                self._kill_group(pid)
            on_start(pid)
            return await self._live(pid, ends, on_event)
        finally:
            ends.close()

    async def _started_as(self, ends: Ends, warn: Callable[[str], None]) -> int | None:
        """Its process id; None: it was killed before. Raises OSError."""
        handles = Handles(ends.their_stdout, ends.their_stderr, {"--fd": ends.their_line, **self._inherited})
        start = asyncio.create_task(self._launcher.launch(self._incarnation, handles, warn))
        killed = asyncio.create_task(self._killed.wait())
        try:
            await asyncio.wait([start, killed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            killed.cancel()
            start.cancel()  # does nothing to one that is done
            await asyncio.wait([start])
            ends.close_theirs()
        return None if start.cancelled() else start.result()

    async def _live(self, pid: int, ends: Ends, on_event: Callable[[Event], None]) -> Exit:
        children = self._launcher.children
        exited = asyncio.create_task(children.exited(pid))
        hearing = asyncio.create_task(self._hear(ends, on_event))
        output = [
            asyncio.create_task(self._copy(ends.stdout, None)),
            asyncio.create_task(self._copy(ends.stderr, self._stderr)),
        ]
        try:
            await asyncio.wait([exited, hearing], return_when=asyncio.FIRST_COMPLETED)
            if hearing.done() and hearing.exception() is not None:
                self.kill("its agent failed")
            if not exited.done():
                await asyncio.wait([exited], timeout=LEAVE_SECONDS)
            if not exited.done():
                self.kill(f"closed its line to the agent, but did not exit within {LEAVE_SECONDS:g} s")
            await exited
            self._kill_group(pid)  # what it forked and left behind
            self._reaped = True
            code = children.reap(pid)
            self._said.set()
            _, late = await asyncio.wait([hearing, *output], timeout=OUTPUT_SECONDS)
            for task in late:
                task.cancel()
            for result in await asyncio.gather(hearing, *output, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result
            return describe(code, self._stderr.lines(), self._reason)
        finally:
            if self._writer is not None:
                self._writer.transport.abort()  # what it was not told yet it will never hear

    def _kill_group(self, pid: int) -> None:
        if not self._reaped:  # as long as the leader is not reaped, its number cannot be another group's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    async def _hear(self, ends: Ends, on_event: Callable[[Event], None]) -> None:
        reader, self._writer = await asyncio.open_connection(sock=ends.line, limit=LONGEST_LINE)
        for line in self._early:
            self._writer.write(line)
        while True:
            try:
                line = await reader.readline()
            except ConnectionError:
                return  # it died with something of ours unread
            except ValueError:
                self.kill(f"sent a line longer than {LONGEST_LINE} bytes")
                return
            if not line.endswith(b"\n"):
                return  # the end; what it was writing when it died is no event
            try:
                on_event(_event(line))
            except IllegalEventError as error:
                self.kill(f"broke the protocol: {error}")
                return

    async def _copy(self, stream: object, tail: Tail | None) -> None:
        """Copy the worker's output, line by line, to the agent's stderr, and remember the last lines in ``tail``."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
        lines = Lines()
        try:
            while chunk := await reader.read(1 << 16):
                _tell(lines.feed(chunk), tail)
                if tail is not None:
                    self._said.set()
            _tell(lines.end(), tail)
        finally:
            transport.close()


def _event(line: bytes) -> Event:
    try:
        event = Event.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "line"
        raise IllegalEventError(f"{where}: {first['msg']} in {line[:200]!r}") from None
    if event.kind in (EventKind.WORKER_STARTED, EventKind.WORKER_EXITED):
        raise IllegalEventError(f"{event.kind} is the agent's to say")
    return event


def _tell(lines: Sequence[bytes], tail: Tail | None) -> None:
    if not lines:
        return
    with contextlib.suppress(OSError, ValueError):  # a log that takes no more must not stop the training
        sys.stderr.buffer.write(b"".join(line + b"\n" for line in lines))
        sys.stderr.buffer.flush()
    if tail is not None:
        for line in lines:
            tail.add(line)


def _not_started(error: OSError) -> Exit:
    return Exit(code=NOT_STARTED, message=f"could not be started: {error}")
