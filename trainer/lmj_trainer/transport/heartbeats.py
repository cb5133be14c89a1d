"""A TCP connection to each peer that carries a byte every now and then, so that its kernel has something to acknowledge.

A call over RPC does the same, and costs 2 ms of the processors at either end; this costs a few system calls. The peer's process takes the
bytes when it comes to it: who is busy or stopped does not have to. Bytes mean nothing, and whoever connects may send them.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Collection
from enum import Enum

from lmj_trainer.transport.flow import CONNECTING_MS, Flow, set_timeout

MOST = 4096
"""Connections that are taken; a job has at most 1,024 ranks."""
_AT_ONCE = 64
"""Connections that are taken before the peers get their turn."""
QUIET_SECONDS = 60.0
"""Who has sent nothing for so long is gone, or stopped: it connects again."""
_UNANSWERED = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}


class Pulse(Enum):
    """What is known of a peer's machine."""

    BEATS = "it acknowledges, as far as is known"
    UNKNOWN = "there is no connection to it, or that has ended"
    SILENT = "it has not acknowledged for too long"


class Heartbeats:
    """For one thread, except :meth:`meet`. Needs Linux."""

    def __init__(self, host: str, milliseconds: int) -> None:
        """``host``: the address of this process. ``milliseconds``: a peer that acknowledges nothing for longer is silent."""
        self._milliseconds = milliseconds
        self._listener = socket.create_server((host, 0), family=_family(host), backlog=MOST)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        """Where peers connect to."""
        self._ports: dict[str, int] = {}
        self._out: dict[str, socket.socket] = {}
        self.acknowledged: set[str] = set()
        """Peers whose machines have acknowledged a heartbeat."""
        self._in: dict[socket.socket, float] = {}
        """With when each was heard last."""
        self._poll = select.poll()

    @property
    def files(self) -> set[int]:
        """Of the connections to peers: nobody else is to set their time-out."""
        return {connection.fileno() for connection in self._out.values()}

    def meet(self, address: str, port: int | None) -> None:
        """The peer at ``address`` (``scheme://host:port``) takes heartbeats at ``port``; 0 or None: nowhere. From any thread."""
        if port:
            self._ports[address] = port

    def keep(self, addresses: Collection[str]) -> None:
        """Have connections to these peers alone."""
        for address in self._out.keys() - addresses:
            self._close(address)
        for address in list(self._ports):
            if address not in addresses:
                self._ports.pop(address, None)

    def wait(self, seconds: float) -> None:
        """For so long, or until a connection to a peer has ended."""
        self._poll.poll(seconds * 1000)

    def beat(self, address: str) -> Pulse:
        """Give the machine of the peer something to acknowledge."""
        connection = self._out.get(address)
        if connection is None:
            port = self._ports.pop(address, 0)
            if port:
                self._connect(address, port)
            return Pulse.UNKNOWN
        try:
            flow = Flow.of(connection)
            if flow.connecting:
                return Pulse.UNKNOWN
            # The time-out counts, too, where the peer has no room: see the module silence.
            set_timeout(connection, 0 if flow.stuck else self._milliseconds)
            if not flow.stuck:
                connection.send(b"\0")
            if flow.acknowledged > 1:
                self.acknowledged.add(address)
            if connection.recv(1) == b"":
                raise ConnectionResetError(errno.ECONNRESET, "the peer has closed it")
        except BlockingIOError:
            pass
        except OSError as error:
            # Where nothing ever came through, something on the way may not let it: that says nothing of the machine.
            silent = error.errno in _UNANSWERED and address in self.acknowledged
            self._close(address)
            return Pulse.SILENT if silent else Pulse.UNKNOWN
        return Pulse.BEATS

    def hear(self) -> None:
        """Take what peers have sent."""
        now = time.monotonic()
        with contextlib.suppress(OSError):  # nobody is there, or there is no file left: they wait
            for _ in range(_AT_ONCE):
                connection, _ = self._listener.accept()
                if len(self._in) >= MOST:
                    connection.close()
                    continue
                connection.setblocking(False)
                self._in[connection] = now
        for connection, heard in list(self._in.items()):
            try:
                ended = connection.recv(4096) == b""
                self._in[connection] = now
            except BlockingIOError:
                ended = now - heard > QUIET_SECONDS
            except OSError:
                ended = True
            if ended:
                del self._in[connection]
                connection.close()

    def close(self) -> None:
        """End all connections."""
        self.keep(())
        for connection in [self._listener, *self._in]:
            connection.close()
        self._in.clear()

    def _connect(self, address: str, port: int) -> None:
        host = host_of(address)
        try:
            connection = socket.socket(_family(host))
        except OSError:  # there is no file left: the peer is called over its link, and says again where it listens
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        set_timeout(connection, max(CONNECTING_MS, self._milliseconds))
        if connection.connect_ex((host, port)) not in (0, errno.EINPROGRESS):
            connection.close()
            return
        self._out[address] = connection
        self._poll.register(connection, select.POLLRDHUP)

    def _close(self, address: str) -> None:
        connection = self._out.pop(address)
        self.acknowledged.discard(address)
        self._poll.unregister(connection)
        connection.close()


def host_of(address: str) -> str:
    """The host of ``scheme://host:port``."""
    return address.partition("://")[2].rpartition(":")[0].strip("[]")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
