"""A snapshot goes from one launcher's memory to another's, or it does not: never another, and never a part of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lmj_api.view import Member, Resume, View
from lmj_trainer.launch import connection as connections
from lmj_trainer.launch.connection import Connection
from lmj_trainer.launch.door import Door
from lmj_trainer.launch.identity import Credentials, Identity
from lmj_trainer.launch.memory import folder as memory
from lmj_trainer.launch.memory import transfer
from lmj_trainer.launch.memory.folder import begin, read, snapshots
from lmj_trainer.launch.memory.transfer import Fetcher, FetchError
from lmj_trainer.launch.words import LONGEST_WORD, Word, WordKind

NAME = "step-7-view-2"
LARGE = os.urandom((2 << 20) + 5)
FILES = {"model": LARGE, "sub/more": b"", "optimizer": b"o" * 70_000}
Giver = Callable[[Connection], Awaitable[None]]
OWNER, TAKER, STRANGER = Identity(), Identity(), Identity()
"""Of ranks 0 and 1, and of nobody."""


def view(address: str, number: int = 3) -> View:
    at = address.partition("#")[0]
    members = [
        Member(rank=rank, pod=f"pod-{rank}", incarnation=1, address=identity.address(at))
        for rank, identity in enumerate((OWNER, TAKER))
    ]
    return View(number=number, members=members, resume=Resume(step=0), reason="for the test")


def taking(of: View, identity: Identity = TAKER) -> Credentials:
    return Credentials(identity, "run", of)


def put(root: Path) -> None:
    writing = begin(root, 7, 2, world=2)
    (writing.site / "sub").mkdir()
    for name, content in FILES.items():
        (writing.site / name).write_bytes(content)
    for rank in (0, 1):
        writing.add(rank, {f"rng-{rank}": f"of {rank}".encode()})
    writing.complete()


@asynccontextmanager
async def giving(folder: Path | None, number: int = 3) -> AsyncIterator[View]:
    door = Door(folder)
    told = view(await door.open("127.0.0.1"), number)
    await door.enter(number, Credentials(OWNER, "run", told), None)
    yield told
    door.close()


@asynccontextmanager
async def another(gives: Giver, identity: Identity = OWNER) -> AsyncIterator[View]:
    """A giver that does as it likes once it was asked."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        connection.say(Word(kind=WordKind.CHALLENGE, nonce="0f"))
        asked = await connection.hear()
        proof = Credentials(identity, "run", view(address)).show("giver", asked.nonce, 1)
        given = Word(kind=WordKind.GIVEN, proof=proof, size=10, files=1, world=1)
        connection.say(given)
        await gives(connection)
        connection.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=LONGEST_WORD)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield view(address)
    server.close()


async def fetch(told: View, into: Path, identity: Identity = TAKER) -> int:
    """How often more of it came."""
    seen: list[int] = []
    await Fetcher(into).fetch(told, told.members[0], 1, taking(told, identity), NAME, lambda: seen.append(1))
    return len(seen)


async def test_it_arrives_as_it_is(tmp_path: Path) -> None:
    put(tmp_path / "there")
    async with giving(tmp_path / "there") as told:
        assert await fetch(told, tmp_path / "here") > 3
    there, here = read(tmp_path / "there" / NAME), read(tmp_path / "here" / NAME)
    assert there is not None
    assert here is not None
    assert (here.whole, here.world, sorted(here.files, key=str)) == (True, 2, sorted(there.files, key=str))
    assert {file.name: (here.path / file.name).read_bytes() for file in here.files} == {
        **FILES,
        "rng-0": b"of 0",
        "rng-1": b"of 1",
    }


async def test_what_is_there_already_is_replaced_whole(tmp_path: Path) -> None:
    put(tmp_path / "there")
    torn = begin(tmp_path / "here", 7, 2, world=2)
    (torn.site / "model").write_text("torn")
    async with giving(tmp_path / "there") as told:
        await fetch(told, tmp_path / "here")
    [found] = snapshots(tmp_path / "here")
    assert (found.path / "model").read_bytes() == LARGE


@pytest.mark.parametrize("folder", [None, Path("none")])
async def test_one_that_is_not_there(tmp_path: Path, folder: Path | None) -> None:
    async with giving(folder and tmp_path / folder) as told:
        with pytest.raises(FetchError, match=f"did not come from rank 0 to rank 1: there is no complete snapshot {NAME} here"):
            await fetch(told, tmp_path / "here")


async def test_strangers_get_nothing_and_give_nothing(tmp_path: Path) -> None:
    put(tmp_path / "there")
    async with giving(tmp_path / "there") as told:
        for nobody in (STRANGER, OWNER):
            with pytest.raises(FetchError, match="it is not of view 3"):
                await fetch(told, tmp_path / "here", nobody)
        with pytest.raises(FetchError, match="view 2 is over"):
            await fetch(view(told.members[0].address, 2), tmp_path / "here")

    async def gives(connection: Connection) -> None:
        connection.say(Word(kind=WordKind.FILE, name="model", size=10))

    for nobody in (STRANGER, TAKER):
        async with another(gives, nobody) as told:
            with pytest.raises(FetchError, match="it is not of this view"):
                await fetch(told, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def says(*words: Word, content: bytes = b"") -> Giver:
    async def gives(connection: Connection) -> None:
        for word in words:
            connection.say(word)
        connection._writer.write(content)

    return gives


FILE = Word(kind=WordKind.FILE, name="model", size=10)


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        (says(), "it closed the connection"),
        (says(FILE, content=b"123456789"), "it closed the connection"),
        (says(FILE.model_copy(update={"size": 11}), content=b"0" * 11), "another snapshot than it said"),
        (says(FILE.model_copy(update={"name": ""}), content=b"0" * 10), "another snapshot than it said"),
        (says(Word(kind=WordKind.BEAT)), "another snapshot than it said"),
        (says(FILE, content=b"0123456789"), "it closed the connection"),
        (says(FILE, content=b'0123456789{"kind": "beat"}\n'), "another snapshot than it said"),
        (says(FILE.model_copy(update={"size": 9}), content=b'012345678{"kind": "done"}\n'), "another snapshot than it said"),
        (says(content=b'{"kind": "file", "name": "../model", "size": 10}\n0123456789'), "it said"),
        (says(content=b"x" * 100_000), "limit"),
    ],
)
async def test_what_is_not_what_was_said_leaves_nothing(tmp_path: Path, gives: Giver, why: str) -> None:
    async with another(gives) as told:
        with pytest.raises(FetchError, match=why):
            await fetch(told, tmp_path / "here")
    assert snapshots(tmp_path / "here") == []
    assert [path for path in (tmp_path / "here").rglob("*") if path.is_file()] == []


async def test_one_that_sends_no_more_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STUCK_SECONDS", 0.2)
    waits = asyncio.Event()

    async def gives(connection: Connection) -> None:
        connection.say(FILE)
        await waits.wait()

    async with another(gives) as told:
        with pytest.raises(FetchError, match=r"it sent nothing for 0\.2 s"):
            await fetch(told, tmp_path / "here")
        waits.set()


async def test_one_that_takes_no_more_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STUCK_SECONDS", 0.2)
    file = tmp_path / "file"
    file.write_bytes(bytes(64 << 20))
    given_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await Connection(reader, writer).send(file, 64 << 20)
        except connections.LineError as error:
            given_up.set_result(str(error))
        writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    connection = await connections.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 5)
    async with asyncio.timeout(20):
        assert await given_up == "it took nothing for 0.2 s"
    connection.close()
    server.close()


async def test_after_a_few_failures_it_is_not_tried_again(tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path / "here")
    async with giving(None) as told:
        for _ in range(transfer.MOST_FAILURES):
            assert fetcher.able
            with pytest.raises(FetchError):
                await fetcher.fetch(told, told.members[0], 1, taking(told), NAME, lambda: None)
    assert not fetcher.able


async def test_one_that_comes_makes_up_for_failures(tmp_path: Path) -> None:
    put(tmp_path / "there")
    fetcher = Fetcher(tmp_path / "here")
    async with giving(tmp_path / "there") as told:
        for name in ["step-1-view-1"] * (transfer.MOST_FAILURES - 1) + [NAME, "step-1-view-1"]:
            if name == NAME:
                await fetcher.fetch(told, told.members[0], 1, taking(told), name, lambda: None)
            else:
                with pytest.raises(FetchError):
                    await fetcher.fetch(told, told.members[0], 1, taking(told), name, lambda: None)
    assert fetcher.able


async def test_one_that_is_cancelled_counts_and_leaves_nothing(tmp_path: Path) -> None:
    waits = asyncio.Event()

    async def gives(connection: Connection) -> None:
        connection.say(FILE)
        connection._writer.write(b"0123")
        await waits.wait()

    fetcher = Fetcher(tmp_path / "here")
    async with another(gives) as told:
        for _ in range(transfer.MOST_FAILURES):
            assert fetcher.able
            came = asyncio.Event()
            fetching = asyncio.create_task(fetcher.fetch(told, told.members[0], 1, taking(told), NAME, came.set))
            async with asyncio.timeout(20):
                await came.wait()
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
        waits.set()
    assert not fetcher.able
    assert [path for path in (tmp_path / "here").rglob("*") if path.is_file()] == []


async def test_where_there_is_no_room_it_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "there")
    monkeypatch.setattr(memory, "room", lambda folder: 1 << 20)
    fetcher = Fetcher(tmp_path / "here")
    async with giving(tmp_path / "there") as told:
        with pytest.raises(FetchError, match=f"rank 1 cannot take over {NAME}: .* has room for 1 MiB"):
            await fetcher.fetch(told, told.members[0], 1, taking(told), NAME, lambda: None)
    assert not fetcher.able
