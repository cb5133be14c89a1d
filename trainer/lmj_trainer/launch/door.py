"""Where a launcher listens for those of the views that it leads, as long as it lives."""

import asyncio
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from lmj_trainer.interfaces import address_of
from lmj_trainer.launch.connection import Connection, LineError
from lmj_trainer.launch.identity import Credentials
from lmj_trainer.launch.leader import Leader
from lmj_trainer.launch.line import HANDSHAKE_SECONDS, HOLD_SECONDS, MOST_CONNECTIONS
from lmj_trainer.launch.memory.transfer import give
from lmj_trainer.launch.words import LONGEST_WORD, Word, WordKind

_ROLES = {WordKind.HELLO: "member", WordKind.FETCH: "fetcher"}
"""What whoever connects proves to be, by its first word."""


class Door:
    """Hands each connection over to the leader of its view, or to the node's memory, once it has proven that it is of that view."""

    def __init__(self, memory: Path | None) -> None:
        """``memory``: the folder of snapshots; None: there is none."""
        self._memory = memory
        self._newest = 0
        self._credentials: Credentials | None = None
        self._leader: Leader | None = None
        self._changed = asyncio.Condition()
        self._open = 0

    async def open(self, host: str) -> str:
        """Listen on a free port of ``host``; the address. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, host, 0, limit=LONGEST_WORD)
        port = self._server.sockets[0].getsockname()[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def enter(self, view: int, credentials: Credentials, leader: Leader | None) -> None:
        """Serve ``view``, and no older one. ``credentials``: this launcher's in it. ``leader`` None: another leads it."""
        async with self._changed:
            self._newest, self._credentials, self._leader = view, credentials, leader
            self._changed.notify_all()

    def close(self) -> None:
        """Listen no more."""
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._open += 1
        connection = Connection(reader, writer)
        try:
            hello, credentials = await self._introduced(connection)
            if hello.kind is WordKind.FETCH:
                await give(self._memory, credentials, hello, connection)
            elif self._leader is not None:
                await self._leader.serve(hello, connection)
            else:
                raise LineError(f"view {hello.view} is not led here")
        except LineError as error:
            connection.say(Word(kind=WordKind.REFUSED, message=str(error)))
        except asyncio.CancelledError:
            writer.transport.abort()  # by who closes the line: it had its time
        finally:
            self._open -= 1
            connection.close()

    async def _introduced(self, connection: Connection) -> tuple[Word, Credentials]:
        challenge = secrets.token_hex(16)
        connection.say(Word(kind=WordKind.CHALLENGE, nonce=challenge))
        hello = await connection.hear(HANDSHAKE_SECONDS)
        if hello.kind not in _ROLES:
            raise LineError("it does not say who it is")
        await self._told_of(hello.view)
        credentials = self._credentials
        if credentials is None or not credentials.hold(hello.proof, hello.rank, _ROLES[hello.kind], challenge, hello.rank):
            raise LineError(f"it is not of view {hello.view}")
        return hello, credentials

    async def _told_of(self, view: int) -> None:
        try:
            async with asyncio.timeout(HOLD_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._newest >= view)
        except TimeoutError:
            raise LineError(f"view {view} is not known here") from None
        if self._newest > view:
            raise LineError(f"view {view} is over: the newest here is view {self._newest}")


def own_host(environment: Mapping[str, str]) -> str:
    """The address at which other pods reach this one: of the interface that the agent was given, or what the host's name says."""
    interface = environment.get("LMJ_INTERFACE")
    if interface is not None and (found := address_of(interface)) is not None:
        return found
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def free_port(host: str) -> int:
    """A port on which nobody listens now. Among those that the kernel gives to nobody by itself, as long as one of a few is free there."""
    for port in (*(20_000 + secrets.randbelow(10_000) for _ in range(32)), 0):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"{host} has no free port")
