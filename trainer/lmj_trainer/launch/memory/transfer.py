"""A snapshot on its way from one node's memory to another's, between two launchers that have proven to be of the same view."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from lmj_api.view import Member, View
from lmj_trainer.launch import connection as connections
from lmj_trainer.launch.connection import Connection, LineError
from lmj_trainer.launch.identity import Credentials
from lmj_trainer.launch.line import HANDSHAKE_SECONDS
from lmj_trainer.launch.memory import folder as memory
from lmj_trainer.launch.memory.folder import File, NoRoomError, Writing
from lmj_trainer.launch.words import Word, WordKind

MOST_FAILURES = 3
"""After so many a launcher fetches no more: views go on from what all have then."""


class FetchError(Exception):
    """The snapshot did not come; the text says why."""


async def give(folder: Path | None, credentials: Credentials, request: Word, connection: Connection) -> None:
    """Answer ``request``, which has proven itself, with the snapshot. Raises LineError: there is none, or the other is gone."""
    snapshot = None if folder is None or request.memory is None else memory.read(folder / request.memory)
    if snapshot is None:
        raise LineError(f"there is no complete snapshot {request.memory} here")
    words = [_word_of(file) for file in snapshot.files]
    shown = credentials.show("giver", request.nonce, request.rank)
    connection.say(Word(kind=WordKind.GIVEN, proof=shown, size=snapshot.size, files=len(words), world=snapshot.world))
    try:
        for word in words:
            connection.say(word)
            await connection.send(snapshot.path / word.name, word.size)
    except LineError:
        connection.abort()  # what is said now would be taken for a part of the file
        raise
    connection.say(Word(kind=WordKind.DONE))


def _word_of(file: File) -> Word:
    try:
        return Word(kind=WordKind.FILE, name=file.name, size=file.size, rank=-1 if file.rank is None else file.rank)
    except ValidationError:
        raise LineError(f"the name of {file.name[:80]!r} cannot be sent") from None


class Fetcher:
    """Takes snapshots over into this node's memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._failures = 0

    @property
    def able(self) -> bool:
        """It is worth trying."""
        return self._failures < MOST_FAILURES

    async def fetch(
        self, view: View, giver: Member, rank: int, credentials: Credentials, name: str, seen: Callable[[], None]
    ) -> None:
        """Have the snapshot ``name`` of ``giver`` here. ``rank``: who wants it. ``seen``: is called as more of it arrives.

        Raises FetchError. Each wait for more of it has a deadline.
        """
        self._failures += 1  # also where it is cancelled, because it takes so long that others give up
        try:
            connection = await connections.connect(giver.address, HANDSHAKE_SECONDS)
            with contextlib.closing(connection):
                given = await _introduced(connection, view, giver.rank, rank, credentials, name)
                await self._take(connection, given, name, seen)
            self._failures = 0
        except NoRoomError as error:
            self._failures = MOST_FAILURES  # it will not get more
            raise FetchError(f"rank {rank} cannot take over {name}: {error}") from None
        except (OSError, LineError) as error:
            raise FetchError(f"{name} did not come from rank {giver.rank} to rank {rank}: {error}") from None

    async def _take(self, connection: Connection, given: Word, name: str, seen: Callable[[], None]) -> None:
        key = memory.key_of(name)
        assert key is not None, "it was named by a word"
        view, step = key
        writing = memory.begin(self.folder, step, view, world=given.world, size=given.size)
        try:
            await _received(connection, given, writing, seen)
            writing.complete()
        except BaseException:
            writing.discard()
            raise


async def _introduced(connection: Connection, view: View, giver: int, rank: int, credentials: Credentials, name: str) -> Word:
    challenge, nonce = await connection.hear(HANDSHAKE_SECONDS), secrets.token_hex(16)
    shown = credentials.show("fetcher", challenge.nonce, rank)
    connection.say(Word(kind=WordKind.FETCH, view=view.number, rank=rank, nonce=nonce, proof=shown, memory=name))
    given = await connection.hear()
    if given.kind is not WordKind.GIVEN:
        raise LineError(given.message or f"it said {given.kind}")
    if not credentials.hold(given.proof, giver, "giver", nonce, rank):
        raise LineError("it is not of this view")
    return given


async def _received(connection: Connection, given: Word, writing: Writing, seen: Callable[[], None]) -> None:
    left = given.size
    for _ in range(given.files):
        word = await connection.hear()
        left -= word.size
        if word.kind is not WordKind.FILE or not word.name or left < 0:
            raise LineError("it sent another snapshot than it said")
        path = writing.site / word.name
        path.parent.mkdir(parents=True, exist_ok=True)
        await connection.receive(path, word.size, seen)
        if word.rank >= 0:
            writing.owners[word.name] = word.rank
    last = await connection.hear()
    if last.kind is not WordKind.DONE or left != 0:
        raise LineError("it sent another snapshot than it said")
