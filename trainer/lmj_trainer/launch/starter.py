"""The process that starts a script's processes, and sees to it that none is left when it is over.

The launcher forks it before it does anything else, so that it has one thread, and so has what it forks. It does what it is asked over a
socket, and tells when a process has ended. It adopts the orphans of its descendants, so that it can end those that left their group. When
its launcher is gone it ends all of them, and itself; when it is killed, the kernel ends the processes that it started.
"""

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lmj_trainer import linux
from lmj_trainer.launch import interpreter
from lmj_trainer.launch.memory.place import DIR
from lmj_trainer.launch.requests import Start, frame, take_messages

CANNOT_RUN = 127
"""Exit code of a process that could not become what it is for, as a shell has it."""


LATER = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that wait until a new process has set itself up."""


def fork_starter(inherited: Sequence[int]) -> socket.socket:
    """Fork a starter; the socket to it. ``inherited``: open files that it is not to have. Raises OSError."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid != 0:
        theirs.close()
        return ours
    try:
        ours.close()
        for file in inherited:
            os.close(file)
        # Its launcher's group is killed as one; this process has to see to the others then.
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # A process that is told something before it can hear it hears it when it can.
        signal.pthread_sigmask(signal.SIG_BLOCK, LATER)
        linux.adopt_orphans()
        linux.show_arguments([sys.executable, "-m", "lmj_trainer", "launch", "(starter)"])
        _Starter(theirs).serve()
    except BaseException:  # noqa: BLE001 - it must not become a second launcher
        sys.excepthook(*sys.exc_info())
        os._exit(1)


class _Starter:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._numbers: dict[int, int] = {}
        """Of living processes, by process id."""
        self._pids: dict[int, int] = {}
        self._wake, wake = os.pipe()
        for file in (self._wake, wake):
            os.set_blocking(file, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # what wakes is the file

    def serve(self) -> NoReturn:
        """Until the launcher is gone."""
        poll, data = select.poll(), bytearray()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {file for file, _ in poll.poll()}
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if self._control.fileno() in ready:
                chunk = self._receive()
                if not chunk:
                    self._clear()
                    os._exit(0)
                data += chunk
                for message in take_messages(data):
                    self._do(message)

    def _receive(self) -> bytes:
        try:
            return self._control.recv(1 << 16)
        except ConnectionError:
            return b""

    def _tell(self, **message: Any) -> None:
        try:
            self._control.sendall(frame(message))
        except OSError:
            self._clear()
            os._exit(0)

    def _do(self, message: Mapping[str, Any]) -> None:
        if "start" in message:
            self._start(Start(**message["start"]))
        elif "signal" in message:
            pid = self._pids.get(message["to"])
            if pid is not None:
                _send(os.kill, pid, message["signal"])
        elif "clear" in message:
            self._clear()
            self._tell(cleared=True)

    def _start(self, start: Start) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.write(2, f"the script cannot be started: {error}\n".encode())
            self._tell(ended=start.number, code=CANNOT_RUN)
            return
        if pid == 0:
            _live(start, parent)
        self._numbers[pid], self._pids[start.number] = start.number, pid
        self._tell(started=start.number, pid=pid)

    def _reap(self) -> None:
        """Tell of own processes that have ended; their groups end with them. Bury adopted ones."""
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            pid = dead.si_pid
            if pid in self._numbers:
                _send(os.killpg, pid, signal.SIGKILL)  # not reaped yet: the number is no other group's
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            number = self._numbers.pop(pid, None)
            if number is not None:
                del self._pids[number]
                self._tell(ended=number, code=code)

    def _clear(self) -> None:
        """End all descendants: those whose parents end become children of this process, and are found in the next round."""
        self._numbers.clear()
        self._pids.clear()
        while True:
            for pid in _children():
                _send(os.killpg, pid, signal.SIGKILL)
                _send(os.kill, pid, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def _children() -> list[int]:
    me, found = os.getpid(), []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(fields[1]) == me:
                found.append(int(entry))
    return found


def _send(send: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or is no leader of a group
        send(pid, number)


def _live(start: Start, parent: int) -> NoReturn:
    """What the forked process does: it leaves all behind that is its parent's, and becomes the script."""
    try:
        signal.set_wakeup_fd(-1)
        linux.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for file in [int(name) for name in os.listdir("/proc/self/fd")]:
            if file > 2:
                _close(file)
        if start.cores:
            os.sched_setaffinity(0, start.cores)
        os.chdir(start.cwd)
        if interpreter.may_become(start.argv, start.cwd):
            interpreter.become(start.argv, start.environment, LATER)
        _execute(start)
    except OSError as error:
        os.write(2, f"{start.argv[0]} cannot be started: {error.strerror}\n".encode())
    except BaseException:  # noqa: BLE001 - it must not become a second starter
        sys.excepthook(*sys.exc_info())
    os._exit(CANNOT_RUN)


def _close(file: int) -> None:
    with contextlib.suppress(OSError):  # it listed the files
        os.close(file)


def _execute(start: Start) -> NoReturn:
    argv = list(start.argv)
    if interpreter.is_python(argv):
        with_memory = ["-m", "lmj_trainer.launch.memory"] if start.environment.get(DIR) else []
        argv = [sys.executable, *with_memory, *argv]
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, other programs expect it
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LATER)
    os.execvpe(argv[0], argv, dict(start.environment))  # noqa: S606 - it is the user's own program
