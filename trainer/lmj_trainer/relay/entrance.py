"""Where other relays connect to, and how they show that they may."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable

from lmj_trainer.relay.admission import Admission
from lmj_trainer.relay.channel import Channel
from lmj_trainer.relay.connection import Connection, Room, join
from lmj_trainer.relay.dial import HELLO_SECONDS, HOLD_SECONDS
from lmj_trainer.relay.door import LOOPBACK
from lmj_trainer.relay.hello import HELLO_BYTES, NONCE_BYTES, WELCOME, Hello
from lmj_trainer.relay.identity import Identity
from lmj_trainer.relay.tls import Tls

log = logging.getLogger(__name__)

MOST_WAITING = 3072
"""Connections of relays that have not been let in yet: all of the largest group connect twice when a view begins."""
MOST_WAITING_OF_HOST = 64
"""Of these from one address, so that nobody who may not come in takes the room of others."""


class RefusedError(ConnectionError):
    """Who connects is not let in; the text says why."""


class NotNamedError(RefusedError):
    """No view that is known here names its key."""


class Entrance:
    """Of one relay."""

    def __init__(
        self,
        identity: Identity,
        admission: Admission,
        is_published: Callable[[int], bool],
        room: Room,
        made: Callable[[Channel], None],
    ) -> None:
        """``is_published``: whether others may be connected to that port. ``made`` is told of each connection that there is."""
        self._identity, self._admission, self._is_published = identity, admission, is_published
        self._room, self._made = room, made
        self._waiting: Counter[str] = Counter()
        """By address."""
        self._keys: dict[Channel, str] = {}
        """Of those that were let in."""
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> int:
        """Listen at ``host``; the port, which is ``port`` unless that is 0. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Channel(self._room, Tls(self._identity.server, server=True), self._accept), host, port, backlog=MOST_WAITING
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        """Listen no more."""
        self._server.close()

    def sweep(self) -> None:
        """End the connections of those that may not stay."""
        for channel, key in list(self._keys.items()):
            if channel.gone:
                del self._keys[channel]
            elif not self._admission.may_stay(key):
                log.info("a connection of a relay that is in no view any more is ended")
                channel.abort()

    def _accept(self, channel: Channel) -> None:
        peer = channel.transport.get_extra_info("peername")  # None: it has gone already
        host = str(peer[0]) if peer else "nowhere"
        if self._waiting[host] >= MOST_WAITING_OF_HOST or self._waiting.total() >= MOST_WAITING:
            channel.abort()
            return
        self._made(channel)
        self._waiting[host] += 1
        task = asyncio.get_running_loop().create_task(self._serve(channel, host))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, channel: Channel, host: str) -> None:
        try:
            local = await self._let_in(channel)
        except OSError as error:  # a time-out, too
            # Anybody may knock as often as he likes; who has waited to be named is worth a line.
            level = logging.INFO if isinstance(error, NotNamedError) else logging.DEBUG
            log.log(level, "a connection from %s is refused: %s", host, str(error) or type(error).__name__)
            channel.finish()
            return
        finally:
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host]
        channel.send(WELCOME)
        join(channel, local)

    async def _admitted(self, channel: Channel, hello: Hello) -> None:
        """Wait until it may come in. Raises OSError: it may not, or has gone, or did not wait."""
        # Ports are published before others can know them: a worker whose port is not has gone.
        admitted = asyncio.create_task(
            self._admission.admitted(hello.key, HOLD_SECONDS, lambda: self._is_published(hello.worker))
        )
        more = asyncio.create_task(channel.exactly(1))
        try:
            await asyncio.wait({admitted, more}, return_when=asyncio.FIRST_COMPLETED)
            if more.done():
                more.result()
                raise RefusedError("it does not wait for an answer")
            try:
                if not admitted.result():
                    raise RefusedError(f"no worker listens at {hello.worker}")
            except TimeoutError:
                raise NotNamedError(f"no view names the key {hello.key}") from None
        finally:
            for task in (admitted, more):
                task.cancel()
            await asyncio.wait({admitted, more})

    async def _let_in(self, channel: Channel) -> Connection:
        """The connection to the worker that it wants to be joined to. Raises OSError."""
        async with asyncio.timeout(HELLO_SECONDS):
            await channel.shaken()
            nonce = secrets.token_bytes(NONCE_BYTES)
            channel.send(nonce)
            hello = Hello.of(await channel.exactly(HELLO_BYTES))
        if not hello.holds(self._identity.key, nonce):
            raise RefusedError("it does not show that it has its key")
        await self._admitted(channel, hello)
        async with asyncio.timeout(HELLO_SECONDS):
            _, local = await asyncio.get_running_loop().create_connection(lambda: Connection(self._room), LOOPBACK, hello.worker)
        self._keys[channel] = hello.key
        return local
