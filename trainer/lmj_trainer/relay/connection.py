"""A TCP connection of a relay. Two of them are joined: what comes from one goes to the other, and the end of one ends both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from lmj_trainer.relay.brochure import Brochure

log = logging.getLogger(__name__)

CHUNK_BYTES = 512 << 10
"""That are read at once."""
HIGH_BYTES = 1 << 20
"""That wait for one connection; then the other is not read any more."""
FLUSH_SECONDS = 5.0
"""For what waits when the other connection has ended."""


class Room:
    """Memory for what is read. All connections of a loop share it: each is done with it before the next is read."""

    def __init__(self) -> None:
        self.raw = memoryview(bytearray(CHUNK_BYTES))
        """As it came."""
        self.plain = memoryview(bytearray(CHUNK_BYTES))
        """The same, decrypted."""


class Connection(asyncio.BufferedProtocol):
    """One that is not encrypted: to the pod's own worker. It is not read before it is joined to another."""

    def __init__(self, room: Room, made: Callable[[Connection], None] = lambda _: None) -> None:
        """``made`` is told when it is there."""
        self._room, self._made = room, made
        self._transport: asyncio.Transport | None = None
        self._other: Connection | None = None
        self._brochure: Brochure | None = None
        self.gone = False
        """Nothing more comes from here."""

    @property
    def transport(self) -> asyncio.Transport:
        """What is beneath it, once it is there."""
        assert self._transport is not None, "it is not connected"
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_BYTES)
        self.hold()
        self._made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See :class:`asyncio.BufferedProtocol`."""
        return self._room.raw

    def buffer_updated(self, nbytes: int) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        self.pass_on(self._room.raw[:nbytes])

    def eof_received(self) -> None:
        """See :class:`asyncio.BufferedProtocol`. Nobody who is relayed ends one direction alone, so that this ends both."""
        self.over()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self.over()

    def pause_writing(self) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        if self._other is not None:
            self._other.hold()

    def resume_writing(self) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        if self._other is not None:
            self._other.go()

    def hold(self) -> None:
        """Read nothing more for now."""
        self.transport.pause_reading()

    def go(self) -> None:
        """Read on."""
        self.transport.resume_reading()

    def send(self, data: bytes | memoryview) -> None:
        """Send ``data``, sooner or later; to one that has ended nothing is sent."""
        if not self.transport.is_closing():
            self.transport.write(bytes(data))  # what it was read into is read into again

    def join(self, other: Connection, brochure: Brochure | None = None) -> None:
        """From now on what comes from here goes to ``other``; ``brochure``: its first bytes go through that."""
        self._other, self._brochure = other, brochure
        self.begin()
        if self.gone:
            other.finish()
        self.go()

    def begin(self) -> None:
        """Pass on what has come already."""

    def pass_on(self, data: bytes | memoryview) -> None:
        """``data`` came: it is for the other connection."""
        assert self._other is not None, "it is read when it is joined"
        if self._brochure is not None:
            try:
                data = self._brochure.passed(bytes(data))
            except ValueError as error:
                log.warning("a connection is ended: %s", error)
                self.abort()
                return
            if self._brochure.done:
                self._brochure = None
        if len(data):
            self._other.send(data)

    def over(self) -> None:
        """Nothing more comes from here. What came has been passed on."""
        if self.gone:
            return
        self.gone = True
        if self._other is not None:
            self._other.finish()

    def finish(self) -> None:
        """Send what waits, for ``FLUSH_SECONDS`` at most, and end."""
        self.gone = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()


def join(one: Connection, other: Connection, brochure: Brochure | None = None) -> None:
    """Join two connections. ``brochure``: the first bytes that come from ``one`` go through that."""
    one.join(other, brochure)
    other.join(one)
