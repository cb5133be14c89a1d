"""Notices a peer whose machine went silent: power cut, network cut. Nobody sends a reset then.

The kernel watches: TCP_USER_TIMEOUT ends a connection whose data is not acknowledged for so long. A beat every now and then sees to it
that there is data: on a connection of its own (see :mod:`~lmj_trainer.transport.heartbeats`), and over the link until there is one. The
peer's kernel acknowledges also when the peer's process is busy, stopped or starved, so a loaded machine is not taken for a dead one, and a
beat that is late here only delays the notice.

Two things the time-out counts that are no silence, so it is set by what the connection does:

* The peer's process does not read, and the window is full. Its kernel goes on to acknowledge, and the time-out ends the connection all
  the same. So there is none while data waits and none is under way; a machine that dies then is noticed by the time-out of a call.
* A first packet that was lost is repeated after a whole second. So a connection that is being made gets more.

Of data under way, a packet that was lost is repeated after 200 ms, the least that Linux waits, or as soon as a later beat is
acknowledged, and once more after 600 ms. From the first repetition on the kernel counts. So 0.5 s has room for that one and, 0.3 s, for its
answer; what lies between that and the second repetition would bring little. Of 50 links that lose 2% of all packets none ended in 20 s, of
those that lose 5% three in 30 s.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable

from lmj_trainer.transport.flow import CONNECTING_MS, Flow, set_timeout
from lmj_trainer.transport.heartbeats import Heartbeats

_REPEAT_MS = 200
"""Until the first repetition."""
_BEATS = 4
"""Beats within the time-out: one is always on the way."""
_LOOK = 2 * _BEATS
"""Beats from one look for connections that are not known to the next, while all peers have heartbeats."""


def milliseconds(seconds: float) -> int:
    """The kernel's time-out with which silence of ``seconds`` is noticed."""
    return max(1, round(seconds * 1000) - _REPEAT_MS)


class SilenceWatch:
    """Has every link of this process fail when its peer does not acknowledge for ``seconds``; works on Linux alone."""

    def __init__(
        self,
        seconds: float,
        beat: Callable[[], object],
        is_link: Callable[[str, str], bool],
        heartbeats: Heartbeats | None = None,
    ) -> None:
        """``beat`` sends a little to each peer, and returns at once whether all have ``heartbeats``. ``is_link``: whether the TCP connection
        from one address to another (``host:port``) is a link to a peer: those of others, as to a storage far away, keep their own deadlines.
        """
        self._seconds, self._beat, self._is_link, self._heartbeats = seconds, beat, is_link, heartbeats
        self._milliseconds = milliseconds(seconds)
        self._links: dict[tuple[int, int], bool] = {}
        self._stop = threading.Event()
        if sys.platform == "linux":
            threading.Thread(target=self._run, name="silence", daemon=True).start()

    def close(self) -> None:
        """Beat no more."""
        self._stop.set()

    def _run(self) -> None:
        wait = self._stop.wait if self._heartbeats is None else self._heartbeats.wait
        beats = 0
        while True:
            wait(self._seconds / _BEATS)
            if self._stop.is_set():
                break
            settled = self._beat()
            self._arm(every=not settled or beats % _LOOK == 0)
            beats += 1
        if self._heartbeats is not None:
            self._heartbeats.close()

    def _arm(self, *, every: bool) -> None:
        """Set the time-out of each connection to what it is doing; ``every``: also of those that are not known to be links yet."""
        known, ours = self._links, set() if self._heartbeats is None else self._heartbeats.files
        self._links = {} if every else {key: False for key, is_link in known.items() if not is_link}
        for file in map(int, os.listdir("/proc/self/fd")) if every else [key[0] for key, is_link in known.items() if is_link]:
            with contextlib.suppress(OSError):  # closed in between
                found = os.fstat(file)
                if not stat.S_ISSOCK(found.st_mode) or file in ours:
                    continue
                key = file, found.st_ino
                if known.get(key) is False:
                    self._links[key] = False
                    continue
                with socket.socket(fileno=os.dup(file)) as connection:
                    is_link = self._time(connection, known.get(key))
                if is_link is not None:
                    self._links[key] = is_link

    def _time(self, connection: socket.socket, is_link: bool | None) -> bool | None:
        """Set the time-out of ``connection``; whether it is a link, None: that is not known yet."""
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return False
        flow = Flow.of(connection)
        if flow.connecting:
            # Where to is not known before it is there.
            set_timeout(connection, max(CONNECTING_MS, self._milliseconds))
            return None
        if is_link is None:
            is_link = self._is_link(_address(connection.getsockname()), _address(connection.getpeername()))
        set_timeout(connection, self._milliseconds if is_link and not flow.stuck else 0)
        return is_link


def _address(name: tuple[str | int, ...]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
