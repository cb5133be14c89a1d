"""A connection to another relay, inside TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from lmj_trainer.relay.connection import Connection, Room
from lmj_trainer.relay.identity import key_of
from lmj_trainer.relay.tls import Tls
from lmj_trainer.transport.flow import Flow, set_timeout

EARLY_BYTES = 256
"""That are decrypted before it is joined: all words of its beginning."""
EARLY_RAW_BYTES = 16 << 10
"""That are taken from the network at once before it is joined, and after which a handshake has to be done, which has some 3,000; who sends
more behind it has to wait. TLS keeps the memory of the most that it ever was given, and it may be anybody who sends."""
KEEP_ALIVE_SECONDS = 30
"""Without a word; then the other machine is asked whether it is there."""


class Channel(Connection):
    """First the two relays get to know each other, with :meth:`shaken` and :meth:`exactly`; then it is joined to a worker's connection."""

    def __init__(self, room: Room, tls: Tls, made: Callable[[Channel], None] = lambda _: None) -> None:
        """``made`` is told when there is a TCP connection."""
        super().__init__(room)
        self._tls, self._there = tls, made
        self._early = b""
        self._begun = 0
        """Bytes of the handshake that came."""
        self._news = asyncio.Event()
        self._problem = "it closed the connection"
        self._sending = True
        """Something may be on its way that is not acknowledged."""

    @property
    def key(self) -> str:
        """By its certificate, whose key it has proven to have. Raises ValueError."""
        return key_of(self._tls.certificate)

    @property
    def opened(self) -> socket.socket:
        """Beneath it."""
        found: socket.socket = self.transport.get_extra_info("socket")
        return found

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        super().connection_made(transport)
        _prepare(self.opened)
        self.go()
        self._there(self)
        self._progress()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See :class:`asyncio.BufferedProtocol`."""
        return self._room.raw if self._other is not None else self._room.raw[:EARLY_RAW_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        if not self._tls.shaken:
            # What is read with the handshake's last bytes may be what comes behind it.
            if self._begun > EARLY_RAW_BYTES:
                self._problem = f"it has sent more than {EARLY_RAW_BYTES} bytes, and the handshake is not done"
                self.abort()
                return
            self._begun += nbytes
        self._tls.receive(self._room.raw[:nbytes])
        self._progress()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        if exc is not None:
            self._problem = str(exc)
        super().connection_lost(exc)

    async def shaken(self) -> None:
        """Wait until the handshake is done. Raises ConnectionError when it fails."""
        while not self._tls.shaken:
            await self._wait()

    async def exactly(self, count: int) -> bytes:
        """The next ``count`` bytes, ``EARLY_BYTES`` at most. Raises ConnectionError when it ends before."""
        while len(self._early) < count:
            await self._wait()
        taken, self._early = self._early[:count], self._early[count:]
        self._progress()
        return taken

    def send(self, data: bytes | memoryview) -> None:
        """See :class:`Connection`."""
        if not self.transport.is_closing():
            self._tls.write(data)
            self._flush()

    def begin(self) -> None:
        """See :class:`Connection`."""
        self._progress()

    def over(self) -> None:
        """See :class:`Connection`."""
        super().over()
        self._news.set()

    def finish(self) -> None:
        """See :class:`Connection`."""
        if self._transport is not None and not self._transport.is_closing():
            self._tls.close()
            self._flush()
        super().finish()

    def watch(self, milliseconds: int) -> None:
        """Have the kernel end it when the other's machine acknowledges nothing for so long; to be called again and again.

        Not while the other has no room for what waits: see :mod:`lmj_trainer.transport.silence`.
        """
        if not self._sending or self.transport.is_closing():
            return
        with contextlib.suppress(OSError):  # it has ended
            flow = Flow.of(self.opened)
            set_timeout(self.opened, 0 if flow.stuck else milliseconds)
            self._sending = flow.under_way > 0 or flow.waiting > 0 or self.transport.get_write_buffer_size() > 0

    def _progress(self) -> None:
        """Do what can be done with what came."""
        try:
            if self._tls.shake():
                self._take()
        except ssl.SSLError as error:
            self._problem = error.reason or str(error)
            self._flush()  # it says why, too
            self.transport.close()
            self.over()
            return
        self._flush()
        self._news.set()

    def _take(self) -> None:
        """Decrypt what came, and pass it on, or keep the little that is wanted before there is anybody for it."""
        if self._other is None:
            count = self._tls.read(self._room.plain[: EARLY_BYTES - len(self._early)])
            self._early += bytes(self._room.plain[:count])
            if self._tls.waiting > EARLY_RAW_BYTES:
                self.hold()
        else:
            if self._early:
                early, self._early = self._early, b""
                self.pass_on(early)
            while count := self._tls.read(self._room.plain):
                self.pass_on(self._room.plain[:count])
        if self._tls.over:
            self.over()
            self.finish()

    def _flush(self) -> None:
        data = self._tls.take()
        if data and not self.transport.is_closing():
            self._sending = True
            self.transport.write(data)

    async def _wait(self) -> None:
        """Until something comes. Raises ConnectionError: nothing does any more."""
        if self.gone:
            raise ConnectionError(self._problem)
        self._news.clear()
        await self._news.wait()


def _prepare(connection: socket.socket) -> None:
    """Have it send what is small at once, and one that has nothing to say end some time after the other's machine has."""
    # The event loop does so for sockets that it makes itself. Otherwise the rest of a message waits until what went before is acknowledged,
    # which the other kernel puts off for 40 ms while nothing goes back.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_SECONDS)
