"""The canary: a port on which everybody gets a line, and which the job's NetworkPolicy keeps the operator from where somebody enforces it."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable

from lmj_api.canary import LINE, VARIABLE

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Connections that are answered before all else gets its turn again; whoever reaches the port may come as often as it likes."""
BACKLOG = 64
"""Of those that wait meanwhile. The kernel drops what comes beyond."""
PAUSE_SECONDS = 1.0
"""After a connection could not be taken, because the agent has no file left for it, say."""


class Canary:
    """Tells its line to whoever connects, and hangs up: it reads nothing, and no connection is there when the next is taken."""

    def __init__(self, host: str, port: int) -> None:
        """Listen there, in the running loop. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        self._pause: asyncio.TimerHandle | None = None
        self._watch()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Listen no more."""
        if self._pause is not None:
            self._pause.cancel()
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _watch(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._socket, self._answer)

    def _answer(self) -> None:
        for _ in range(AT_ONCE):
            try:
                one, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # It stays ready to be read: without a pause the loop would do nothing else.
                log.warning("the canary takes no connection for %g s: %s", PAUSE_SECONDS, error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._pause = loop.call_later(PAUSE_SECONDS, self._watch)
                return
            with one, contextlib.suppress(OSError):
                one.setblocking(False)
                one.send(LINE)  # it has room for that, or its owner is gone


def open_canary(host: str, warn: Callable[[str], None]) -> Canary | None:
    """The canary that this pod is to have, on ``host``; None: it is to have none, or cannot, which ``warn`` is told then."""
    wanted = os.environ.get(VARIABLE, "")
    if not wanted:
        return None
    try:
        port = int(wanted)
        if not 0 <= port <= 65535:
            raise ValueError(f"{port} is no port")
        return Canary(host, port)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        warn(
            f"{VARIABLE}: cannot listen on {host}:{wanted[:20]}, so nobody finds out whether the NetworkPolicy is enforced: {why}"
        )
        return None
