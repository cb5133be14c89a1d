"""The agent's child processes: who waits for which, so that each end is learnt of once and by the right one."""

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator


class Children:
    """Lives in the event loop. An agent that adopts orphans has children that it never started; these are buried by :meth:`sweep`."""

    def __init__(self, adopts: bool = False) -> None:
        """``adopts``: orphaned descendants become children of this process, and nobody else in it waits for children."""
        self.adopts = adopts
        self._own: dict[int, subprocess.Popen[bytes] | None] = {}
        self._expected = 0

    def own(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        """``pid`` is a child that :meth:`reap` will be called for; ``popen``: what made it, if that was this process."""
        self._own[pid] = popen

    @contextlib.contextmanager
    def expecting(self) -> Iterator[None]:
        """Meanwhile a child may come whose number is not known yet: the dead are left alone."""
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1
            self.sweep()

    async def exited(self, pid: int) -> None:
        """Wait until the own child ``pid`` is dead. Its number stays its own until it is reaped, where the system can (Linux)."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        descriptor = _pidfd(pid)
        if descriptor is None:
            popen = self._own[pid]
            threading.Thread(target=_wait, args=(pid, popen, loop, done), name=f"wait-{pid}", daemon=True).start()
            await done.wait()
            return
        try:
            loop.add_reader(descriptor, done.set)
            await done.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def reap(self, pid: int) -> int:
        """Exit code of the own child ``pid`` (negative: the signal that ended it); waits for it if need be."""
        popen = self._own[pid]
        code = popen.wait() if popen is not None else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        del self._own[pid]
        self.sweep()
        return code

    def sweep(self) -> None:
        """Bury the orphans that died here: to be called whenever a child of this process ended."""
        if not self.adopts:
            return
        while not self._expected:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return  # there is no child at all
            # An own one is looked for by who started it; reaping that one leads here again.
            if dead is None or dead.si_pid in self._own:
                return
            os.waitpid(dead.si_pid, 0)


def _pidfd(pid: int) -> int | None:
    """A file that can be read when process ``pid`` is dead; None where there is no such thing, or a sandbox forbids it."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise  # it is not an own one
    except (AttributeError, OSError):
        return None


def _wait(pid: int, popen: subprocess.Popen[bytes] | None, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    elif popen is not None:
        popen.wait()
    if not loop.is_closed():
        loop.call_soon_threadsafe(done.set)
