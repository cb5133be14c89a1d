"""A relay's way to another one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from lmj_trainer.relay.address import Address
from lmj_trainer.relay.channel import Channel
from lmj_trainer.relay.connection import Room
from lmj_trainer.relay.hello import NONCE_BYTES, WELCOME, Hello
from lmj_trainer.relay.identity import Identity
from lmj_trainer.relay.tls import Tls
from lmj_trainer.transport.flow import CONNECTING_MS, set_timeout

CONNECT_SECONDS = 2.0
"""Room for one first packet that was lost; it is repeated after a second."""
HELLO_SECONDS = 10.0
"""For the handshake, and for each word after it."""
HOLD_SECONDS = 30.0
"""A relay may be told of a view so much later than the one that connects to it."""


class StrangerError(ConnectionError):
    """Whoever answers is not the relay that is looked for."""


class Dial:
    """Of one relay."""

    def __init__(self, identity: Identity, room: Room, milliseconds: int, made: Callable[[Channel], None]) -> None:
        """``milliseconds``: of the kernel, see :meth:`Channel.watch`. ``made`` is told of each connection that there is."""
        self._identity, self._room, self._milliseconds, self._made = identity, room, milliseconds, made

    async def to(self, peer: Address) -> Channel:
        """A channel that ends at ``peer``'s worker. Raises OSError: it is not there, is another, or does not want this one."""
        channel = await self._connected(peer)
        try:
            await self._introduced(channel, peer)
        except BaseException:
            channel.abort()
            raise
        return channel

    async def _connected(self, peer: Address) -> Channel:
        loop = asyncio.get_running_loop()
        made = socket.socket(socket.AF_INET6 if ":" in peer.host else socket.AF_INET)
        try:
            made.setblocking(False)
            set_timeout(made, max(CONNECTING_MS, self._milliseconds))
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.sock_connect(made, (peer.host, peer.port))
            tls = Tls(self._identity.client, server=False)
            _, channel = await loop.create_connection(lambda: Channel(self._room, tls, self._made), sock=made)
        except BaseException:
            made.close()
            raise
        return channel

    async def _introduced(self, channel: Channel, peer: Address) -> None:
        async with asyncio.timeout(HELLO_SECONDS):
            await channel.shaken()
            key = _key(channel)
            if key != peer.key:
                raise StrangerError(f"the relay at {peer.host}:{peer.port} has the key {key}, not {peer.key}")
            nonce = await channel.exactly(NONCE_BYTES)
        channel.send(Hello.made(self._identity, peer.key, nonce, peer.worker).to_bytes())
        async with asyncio.timeout(HOLD_SECONDS + HELLO_SECONDS):
            word = await channel.exactly(len(WELCOME))
        if word != WELCOME:
            raise StrangerError(f"the relay at {peer.host}:{peer.port} says {word!r}")


def _key(channel: Channel) -> str:
    try:
        return channel.key
    except ValueError as error:
        raise StrangerError(f"its certificate is of no relay: {error}") from None
