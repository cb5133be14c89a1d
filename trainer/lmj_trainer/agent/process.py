"""One worker process: its birth, its line of events and commands, its output, and its end."""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from pydantic import ValidationError

from lmj_api.protocol import Command, Event, EventKind, Exit
from lmj_trainer.agent.exits import describe
from lmj_trainer.agent.fold import IllegalEventError
from lmj_trainer.agent.tail import Lines, Tail

LONGEST_LINE = 16 << 20
"""Bytes of an event: the confusion matrix of 2,000 labels fits."""
LEAVE_SECONDS = 30.0
"""A worker that closed its line has so long to exit."""
OUTPUT_SECONDS = 2.0
"""Output of a dead worker is read for so long at most: a grandchild that escaped its group may hold the pipe."""

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


class WorkerProcess:
    """A worker and its process group. Make one with :meth:`start`, then await :meth:`run` once."""

    def __init__(self, popen: subprocess.Popen[bytes], line: socket.socket) -> None:
        self._popen = popen
        self._line = line
        self._writer: asyncio.StreamWriter | None = None
        self._early: list[bytes] = []
        self._reaped = False
        self._reason: str | None = None
        self._stderr = Tail()

    @classmethod
    def start(cls, command: Callable[[int], Sequence[str]], environment: Mapping[str, str]) -> "WorkerProcess":
        """Start ``command(fd)``, ``fd`` being its end of the line, in a process group of its own. Raises OSError.

        To be called from the main thread: Linux ends the worker when the thread that made it ends.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                popen = subprocess.Popen(
                    command(theirs.fileno()),
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    preexec_fn=_die_with_parent if _libc is not None else None,
                )
            except BaseException:
                ours.close()
                raise
        return cls(popen, ours)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group."""
        return self._popen.pid

    def send(self, command: Command) -> None:
        """Tell the worker. One that is gone, or going, hears nothing: its end is told by :meth:`run`."""
        line = command.to_json().encode() + b"\n"
        if self._writer is None:
            self._early.append(line)
        elif not self._writer.is_closing():
            self._writer.write(line)

    def kill(self, reason: str | None = None) -> None:
        """End the whole process group at once; ``reason`` (the first one given) becomes the message of its exit. Any thread may."""
        self._reason = self._reason or reason
        if not self._reaped:  # as long as the leader is not reaped, its number cannot be another group's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    async def run(self, on_event: Callable[[Event], None]) -> Exit:
        """Give every event to ``on_event``, in order, until the process is gone; then tell how it ended.

        A line that is no event, or one for which ``on_event`` raises IllegalEventError, ends the worker; another error does so
        too, and is raised here.
        """
        exited = asyncio.create_task(_exited(self._popen))
        hearing = asyncio.create_task(self._hear(on_event))
        output = [
            asyncio.create_task(self._copy(self._popen.stdout, None)),
            asyncio.create_task(self._copy(self._popen.stderr, self._stderr)),
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
            self.kill()  # what it forked and left behind
            self._reaped = True
            code = self._popen.wait()
            _, late = await asyncio.wait([hearing, *output], timeout=OUTPUT_SECONDS)
            for task in late:
                task.cancel()
            for result in await asyncio.gather(hearing, *output, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result
            return describe(code, self._stderr.lines(), self._reason)
        finally:
            if self._writer is not None:
                self._writer.close()

    async def _hear(self, on_event: Callable[[Event], None]) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._line, limit=LONGEST_LINE)
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


def _die_with_parent() -> None:
    # Between fork and exec. The parent may have died already: then the line's end tells the worker.
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


async def _exited(popen: subprocess.Popen[bytes]) -> None:
    """Wait until the process is dead. It is not reaped yet where the system can tell (Linux)."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    if hasattr(os, "pidfd_open"):
        descriptor = os.pidfd_open(popen.pid)
        try:
            loop.add_reader(descriptor, done.set)
            await done.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return

    def wait() -> None:
        popen.wait()
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=wait, name=f"wait-{popen.pid}", daemon=True).start()
    await done.wait()
