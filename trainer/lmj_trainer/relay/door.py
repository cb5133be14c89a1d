"""Where a pod's worker finds a peer: two ports on the loopback interface, from which all goes to the peer's relay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lmj_trainer.relay.address import Address
from lmj_trainer.relay.brochure import Brochure
from lmj_trainer.relay.channel import Channel
from lmj_trainer.relay.connection import Connection, Room, join

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_TRIES = 64
"""For a port with as many digits as the peer's own, which nearly all have."""


class Door:
    """To one peer. A pipe begins at the first port, and is told there that its further connections go to the second."""

    def __init__(self, peer: Address, dial: Callable[[Address], Awaitable[Channel]], room: Room) -> None:
        """``dial`` makes a channel to a peer. Raises OSError."""
        self._peer, self._dial, self._room = peer, dial, room
        self._servers: list[asyncio.Server] = []
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        """Listen; where the worker is to connect to (``HOST:PORT``). Raises OSError."""
        further = await self._further()
        theirs, ours = f"{LOOPBACK}:{self._peer.worker}", f"{LOOPBACK}:{further}"
        return f"{LOOPBACK}:{await self._listen(lambda: Brochure(theirs, ours))}"

    def close(self) -> None:
        """Listen no more; connections that were taken go on."""
        for server in self._servers:
            server.close()

    async def _further(self) -> int:
        """Where further connections come."""
        for _ in range(_TRIES):
            port = await self._listen(lambda: None)
            if len(str(port)) == len(str(self._peer.worker)):
                return port
            self._servers.pop().close()
        raise OSError(f"{LOOPBACK} has no free port with as many digits as {self._peer.worker}")

    async def _listen(self, brochure: Callable[[], Brochure | None]) -> int:
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._room, lambda made: self._accept(made, brochure())), LOOPBACK, 0
        )
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def _accept(self, local: Connection, brochure: Brochure | None) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(local, brochure))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, local: Connection, brochure: Brochure | None) -> None:
        try:
            channel = await self._dial(self._peer)
        except OSError as error:  # a time-out, too
            log.info("%s:%d cannot be reached: %s", self._peer.host, self._peer.port, str(error) or type(error).__name__)
            local.abort()
            return
        join(channel, local, brochure)
