"""The agent's side of its fork server: one process, what it said of itself, and the workers that it forked."""

import asyncio
import contextlib
import json
import os
import signal
import socket

from lmj_trainer import linux
from lmj_trainer.agent.children import Children
from lmj_trainer.agent.launch import Handles, LaunchError, Program, start_server
from lmj_trainer.fork_request import GO, LONGEST_REQUEST, Request
from lmj_trainer.wording import signal_name

FORK_SECONDS = 10.0
"""A fork takes milliseconds: a fork server that takes so long for one is stuck."""

END_SECONDS = 2.0
"""One that closed its end of the socket has so long to end."""


class ForkServer:
    """A running fork server. Make one with :meth:`start`, then await :meth:`life` once."""

    def __init__(self, pid: int, control: socket.socket, children: Children) -> None:
        self.pid = pid
        self.problem: str | None = None
        """Why it refuses to fork, once it does: the next one would too."""
        self._control = control
        self._children = children
        self._gone = False
        self._settled = asyncio.Event()
        self._ready = False

    @classmethod
    def start(cls, program: Program, children: Children) -> "ForkServer":
        """Start one. Raises OSError. To be called from the main thread: Linux ends it when the thread that made it ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                ours.setblocking(False)
                pid = start_server(program, theirs.fileno(), children)
            except BaseException:
                ours.close()
                raise
        return cls(pid, ours, children)

    @property
    def importing(self) -> bool:
        """It is not ready yet."""
        return not self._settled.is_set()

    @property
    def memory(self) -> int | None:
        """Bytes; what it shares with the worker counts half."""
        return None if self._gone else linux.proportional_bytes(self.pid)

    def kill(self) -> None:
        """End it at once; its workers live on."""
        if not self._gone:
            os.kill(self.pid, signal.SIGKILL)

    async def life(self) -> str:
        """Take note of what it says until it has ended; then tell how that was."""
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(ConnectionError):
                while message := await loop.sock_recv(self._control, LONGEST_REQUEST):
                    said = json.loads(message)
                    self.problem = said.get("problem")
                    self._ready = self.problem is None
                    self._settled.set()
            # It closed its end: it ends by itself now, or is made to.
            try:
                async with asyncio.timeout(END_SECONDS):
                    await self._children.exited(self.pid)
            except TimeoutError:
                self.kill()
                await self._children.exited(self.pid)
        finally:
            self._ready = False
            self._settled.set()
            self.kill()
            self._gone = True
            code = self._children.reap(self.pid)
            self._control.close()
        how = f"killed by {signal_name(-code)}" if code < 0 else f"left with exit code {code}"
        return self.problem or how

    async def launch(self, program: Program, incarnation: int, handles: Handles) -> int:
        """Have worker ``incarnation`` forked; its process id. Waits until the imports are done. Raises LaunchError.

        When this raises, or is cancelled, no worker will come of it: a child does nothing until it is told to go on.
        """
        await self._settled.wait()
        if not self._ready:
            raise LaunchError(f"its fork server {self.problem or 'has ended'}")
        request = Request(os.getpid(), list(program.arguments(incarnation)), list(handles.inherited))
        ours, theirs = socket.socketpair()
        with self._children.expecting(), ours:
            ours.setblocking(False)
            with theirs:
                files = [theirs.fileno(), handles.stdout, handles.stderr, *handles.inherited.values()]
                try:
                    socket.send_fds(self._control, [request.to_bytes()], files)
                except OSError as error:
                    raise LaunchError(f"its fork server cannot be asked: {error}") from error
            return await self._first_word(ours)

    async def _first_word(self, child: socket.socket) -> int:
        try:
            async with asyncio.timeout(FORK_SECONDS):
                said = await asyncio.get_running_loop().sock_recv(child, 1024)
        except TimeoutError:
            self.kill()
            raise LaunchError(f"its fork server did not fork it within {FORK_SECONDS:g} s") from None
        except OSError as error:
            raise LaunchError(f"it died at once: {error}") from error
        if not said.isdigit():  # its process id, or why there is none
            raise LaunchError(f"its fork server cannot fork it: {said.decode(errors='replace')}" if said else "it died at once")
        pid = int(said)
        self._children.own(pid)
        with contextlib.suppress(OSError):  # it died just now: its exit says how
            child.send(GO)
        return pid
