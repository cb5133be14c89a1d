"""Notices a peer whose machine went silent: power cut, network cut. Nobody sends a reset then.

The kernel watches: TCP_USER_TIMEOUT ends a connection whose data is not acknowledged for so long. A beat every now and then sees to it
that there is data. The peer's kernel acknowledges also when the peer's process is busy, stopped or starved, so a loaded machine is not
taken for a dead one, and a beat that is late here only delays the notice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_TCP_USER_TIMEOUT = 18  # of Linux; Python's socket module lacks the name on others
_BEATS = 4
"""Beats within the time-out: one is always on the way."""


class SilenceWatch:
    """Has every TCP connection of this process fail when its peer does not acknowledge for ``seconds``; works on Linux alone."""

    def __init__(self, seconds: float, beat: Callable[[], None]) -> None:
        """``beat`` sends a little to each peer, and returns at once."""
        self._seconds, self._beat = seconds, beat
        self._known: set[tuple[int, int]] = set()
        self._stop = threading.Event()
        if sys.platform == "linux":
            threading.Thread(target=self._run, name="silence", daemon=True).start()

    def close(self) -> None:
        """Beat no more."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds / _BEATS):
            self._beat()
            self._arm()

    def _arm(self) -> None:
        """Set the time-out on connections that are new since the last time."""
        now = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed in between
                found = os.stat(f"/proc/self/fd/{name}")
                key = int(name), found.st_ino
                now.add(key)
                if key not in self._known and _is_socket(found.st_mode):
                    _set_timeout(int(name), round(self._seconds * 1000))
        self._known = now


def _is_socket(mode: int) -> bool:
    return mode & 0o170000 == 0o140000


def _set_timeout(descriptor: int, milliseconds: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, milliseconds)
