"""The view line's end at every member that does not lead."""

import asyncio
import secrets
from dataclasses import dataclass, field

from lmj_api.view import Member, View
from lmj_trainer.launch.connection import Connection, LineError, connect
from lmj_trainer.launch.identity import Credentials
from lmj_trainer.launch.line import FINISH_SECONDS, HANDSHAKE_SECONDS, BrokenError, Life, broken
from lmj_trainer.launch.memory.choice import Held
from lmj_trainer.launch.words import Word, WordKind


@dataclass
class Follower:
    """The line's end at every other member."""

    view: View
    member: Member
    credentials: Credentials
    life: Life
    held: Held = field(default_factory=Held)
    """What this node has in memory."""
    _connection: Connection | None = None
    _beating: asyncio.Task[None] | None = None

    @property
    def _leader(self) -> Member:
        return self.view.members[0]

    async def begin(self, seconds: float) -> Word:
        """See :class:`Line`."""
        try:
            async with asyncio.timeout(seconds):
                self._connection = await connect(self._leader.address, seconds)
                return await self._introduced(self._connection, seconds)
        except (OSError, TimeoutError, LineError) as error:
            why = str(error) or f"no word within {seconds:g} s"
            raise BrokenError(
                f"rank {self._leader.rank}, which leads the view, cannot be joined: {why}", self._leader.rank
            ) from None

    async def _introduced(self, connection: Connection, seconds: float) -> Word:
        challenge, nonce, rank = await connection.hear(HANDSHAKE_SECONDS), secrets.token_hex(16), self.member.rank
        shown = self.credentials.show("member", challenge.nonce, rank)
        hello = Word(
            kind=WordKind.HELLO,
            view=self.view.number,
            rank=rank,
            nonce=nonce,
            proof=shown,
            have=self.held.names,
            whole=self.held.whole,
            fetches=self.held.fetches,
        )
        connection.say(hello)
        self._beating = asyncio.create_task(connection.beat(self.life.own))
        while True:
            word = await connection.hear(seconds)
            if word.kind is WordKind.START:
                if not self.credentials.hold(word.proof, self._leader.rank, "leader", nonce, rank):
                    raise LineError("it is not of this view")
                return word
            if word.kind is not WordKind.BEAT:
                raise broken(word)

    def say(self, word: Word) -> None:
        """See :class:`Line`."""
        if self._connection is not None:
            self._connection.say(word)

    async def next(self) -> Word:
        """See :class:`Line`."""
        assert self._connection is not None, "it has begun"
        try:
            while True:
                word = await self._connection.hear()
                if word.kind is not WordKind.BEAT:
                    return word
                if word.lively:
                    self.life.seen()
        except LineError as error:
            leader = self._leader.rank
            return Word(kind=WordKind.LOST, rank=leader, message=f"the launcher of rank {leader} is lost: {error}")

    def complete(self) -> None:
        """See :class:`Line`: it is the leader's to say."""

    def close(self) -> None:
        """See :class:`Line`."""
        if self._beating is not None:
            self._beating.cancel()
        if self._connection is not None:
            self._connection.close()

    async def closed(self) -> None:
        """See :class:`Line`."""
        if self._connection is not None:
            await self._connection.closed(FINISH_SECONDS)
