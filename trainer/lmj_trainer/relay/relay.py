"""The relay: who it is, where it listens, whom it lets in, and the ways that it has to others."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence

from lmj_trainer.relay.address import Address
from lmj_trainer.relay.admission import Admission
from lmj_trainer.relay.channel import Channel
from lmj_trainer.relay.connection import Room
from lmj_trainer.relay.dial import Dial
from lmj_trainer.relay.door import Door
from lmj_trainer.relay.entrance import Entrance
from lmj_trainer.relay.identity import Identity
from lmj_trainer.transport.silence import milliseconds

LOOKS = 4
"""For what connections do, within the time after which a silent machine is lost."""
SWEEP_SECONDS = 10.0


class Relay:
    """Of one pod. Lives in one event loop."""

    def __init__(self, silence: float, identity: Identity | None = None) -> None:
        """``silence``: seconds after which workers take a machine for lost that acknowledges nothing. Their heartbeats notice it; here a
        connection is ended after twice as long, for what has no heartbeats yet.
        """
        self.identity = identity or Identity()
        self.admission = Admission(asyncio.get_running_loop().time)
        self._silence, self._room = silence, Room()
        self._channels: set[Channel] = set()
        self._milliseconds = milliseconds(2 * silence)
        self._dial = Dial(self.identity, self._room, self._milliseconds, self._channels.add)
        self._entrance = Entrance(self.identity, self.admission, self._is_published, self._room, self._channels.add)
        self._published: dict[Hashable, int] = {}
        self._doors: dict[Hashable, dict[str, Door]] = {}
        """By who wants them, and by address."""
        self._watching: list[asyncio.Task[None]] = []

    async def open(self, host: str, port: int = 0) -> None:
        """Listen at the pod's address. Raises OSError."""
        self._host, self._port = host, await self._entrance.open(host, port)
        self._watching = [asyncio.create_task(self._watch()), asyncio.create_task(self._sweep())]

    async def close(self) -> None:
        """Listen no more, and end all connections."""
        self._entrance.close()
        for who in list(self._doors):
            self.leave(who)
        for task in self._watching:
            task.cancel()
        await asyncio.wait(self._watching)
        for channel in self._channels:
            channel.abort()

    @property
    def address(self) -> str:
        """Where it listens (``HOST:PORT``)."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    def publish(self, who: Hashable, port: int) -> str:
        """Let others be connected to ``port`` of the loopback interface, where ``who`` listens; its address for them."""
        self._published[who] = port
        return str(Address(self._host, self._port, port, self.identity.key))

    async def reach(self, who: Hashable, text: str) -> str:
        """Where ``who`` connects to for the peer whose address is ``text``. Raises ValueError: it is none; OSError: there is no port left."""
        doors = self._doors.setdefault(who, {})
        if (old := doors.pop(text, None)) is not None:
            old.close()
        door = doors[text] = Door(Address.of(text), self._dial.to, self._room)
        return await door.open()

    def forget(self, who: Hashable, text: str) -> None:
        """``who`` does not connect to that peer any more."""
        door = self._doors.get(who, {}).pop(text, None)
        if door is not None:
            door.close()

    def admit(self, who: Hashable, addresses: Sequence[str]) -> None:
        """Let the relays of those peers in, and no others because of ``who``. Raises ValueError: one is no address."""
        self.admission.name(who, {Address.of(text).key for text in addresses})

    def leave(self, who: Hashable) -> None:
        """``who`` is gone."""
        self._published.pop(who, None)
        self.admission.name(who, ())  # who waits for its worker hears of this
        for door in self._doors.pop(who, {}).values():
            door.close()

    def _is_published(self, port: int) -> bool:
        return port in self._published.values()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._silence / LOOKS)
            for channel in list(self._channels):
                if channel.transport.is_closing():
                    self._channels.discard(channel)
                else:
                    channel.watch(self._milliseconds)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._entrance.sweep()
