"""The view line, between ends in one process."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from lmj_api.view import Member, Resume, View
from lmj_trainer.launch import connection
from lmj_trainer.launch.connection import Connection, split_address
from lmj_trainer.launch.door import Door
from lmj_trainer.launch.follower import Follower
from lmj_trainer.launch.identity import Credentials, Identity
from lmj_trainer.launch.leader import Leader
from lmj_trainer.launch.line import BrokenError, Life
from lmj_trainer.launch.memory.choice import Held
from lmj_trainer.launch.words import LONGEST_WORD, Word, WordKind

K = WordKind
SECONDS = 20.0


def held_by(rank: int) -> Held:
    return Held((f"step-{rank}-view-1",))


@dataclass
class Rig:
    door: Door
    address: str
    lively: set[int] = field(default_factory=set)
    seen: list[int] = field(default_factory=list)
    opened: list[Leader | Follower] = field(default_factory=list)
    identities: dict[int, Identity] = field(default_factory=lambda: {rank: Identity() for rank in range(3)})

    def view(self, ranks: int, number: int = 1) -> View:
        members = [
            Member(rank=rank, pod=f"pod-{rank}", incarnation=1, address=self.identities[rank].address(self.address))
            for rank in range(ranks)
        ]
        return View(number=number, members=members, resume=Resume(step=0), reason="for the test")

    def life(self, rank: int) -> Life:
        return Life(lambda: rank in self.lively, lambda: self.seen.append(rank))

    def credentials(self, view: View, rank: int, identity: Identity | None = None, run: str = "run") -> Credentials:
        return Credentials(identity or self.identities[rank], run, view)

    def leader(self, view: View, identity: Identity | None = None) -> Leader:
        word = Word(kind=K.START, port=5, resume="/c")

        def start(held: Mapping[int, Held]) -> Mapping[int, Word]:
            return {rank: word.model_copy(update={"giver": 10 + rank, "memory": one.names[0]}) for rank, one in held.items()}

        it = Leader(view, 0, self.credentials(view, 0, identity), self.life(0), start, held_by(0))
        self.opened.append(it)
        return it

    def follower(self, view: View, rank: int, credentials: Credentials | None = None) -> Follower:
        own = credentials or self.credentials(view, rank)
        it = Follower(view, view.members[rank], own, self.life(rank), held_by(rank))
        self.opened.append(it)
        return it

    async def begun(self, ranks: int) -> list[Leader | Follower]:
        view = self.view(ranks)
        leader = self.leader(view)
        await self.door.enter(view.number, leader.credentials, leader)
        lines: list[Leader | Follower] = [leader, *(self.follower(view, rank) for rank in range(1, ranks))]
        starts = await asyncio.gather(*(line.begin(SECONDS) for line in lines))
        told = [(start.port, start.resume, start.memory, start.giver) for start in starts]
        assert told == [(5, "/c", f"step-{rank}-view-1", 10 + rank) for rank in range(ranks)]
        return lines


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    door = Door(None)
    it = Rig(door, await door.open("127.0.0.1"))
    yield it
    for line in it.opened:
        line.close()
    for line in it.opened:
        await line.closed()
    door.close()


async def next_word(line: Leader | Follower) -> Word:
    async with asyncio.timeout(SECONDS):
        return await line.next()


async def test_all_are_told_that_all_are_done_when_the_leader_says_so(rig: Rig) -> None:
    leader, second, third = await rig.begun(3)
    for line in (second, leader, third):
        line.say(Word(kind=K.DONE))
    assert (await next_word(leader)).kind is K.COMPLETED
    waiting = asyncio.create_task(next_word(second))
    await asyncio.sleep(0.05)
    assert not waiting.done(), "whoever leads makes it known first"
    leader.complete()
    leader.close()
    assert [(await waiting).kind, (await next_word(third)).kind] == [K.COMPLETED, K.COMPLETED]


async def test_all_are_told_who_failed(rig: Rig) -> None:
    lines = await rig.begun(3)
    lines[2].say(Word(kind=K.FAILED, message="out of memory"))
    assert [await next_word(line) for line in lines] == [Word(kind=K.LOST, rank=2, message="out of memory")] * 3


async def test_a_member_whose_connection_ends_is_lost(rig: Rig) -> None:
    lines = await rig.begun(3)
    lines[1].close()
    expected = Word(kind=K.LOST, rank=1, message="the launcher of rank 1 is lost: it closed the connection")
    assert [await next_word(line) for line in (lines[0], lines[2])] == [expected] * 2


async def test_a_leader_whose_connection_ends_is_lost(rig: Rig) -> None:
    leader, second = await rig.begun(2)
    leader.close()
    assert (await next_word(second)).rank == 0


async def test_a_leader_that_was_told_to_leave_says_so(rig: Rig) -> None:
    leader, second = await rig.begun(2)
    leader.say(Word(kind=K.LEFT, message="view 1 lost a member"))
    leader.close()
    assert await next_word(second) == Word(kind=K.LOST, message="view 1 lost a member")


async def test_who_stops_stops_all(rig: Rig) -> None:
    lines = await rig.begun(2)
    lines[1].say(Word(kind=K.STOP, message="a rank is to leave"))
    assert [(await next_word(line)).kind for line in lines] == [K.STOP] * 2


async def test_a_member_that_knows_the_view_first_waits(rig: Rig) -> None:
    view = rig.view(2)
    leader, second = rig.leader(view), rig.follower(view, 1)
    early = asyncio.create_task(second.begin(SECONDS))
    await asyncio.sleep(0.1)
    await rig.door.enter(1, leader.credentials, leader)
    await asyncio.gather(leader.begin(SECONDS), early)


async def test_a_member_of_an_older_view_is_refused(rig: Rig) -> None:
    newer = rig.leader(rig.view(2, number=2))
    await rig.door.enter(2, newer.credentials, newer)
    with pytest.raises(BrokenError, match="view 1 is over: the newest here is view 2") as raised:
        await rig.follower(rig.view(2), 1).begin(SECONDS)
    assert raised.value.rank is None


async def test_a_stranger_is_refused(rig: Rig) -> None:
    view = rig.view(3)
    leader = rig.leader(view)
    await rig.door.enter(1, leader.credentials, leader)
    strangers = (
        rig.credentials(view, 1, Identity()),
        rig.credentials(view, 2),
        rig.credentials(view, 1, run="another"),
        rig.credentials(view.model_copy(update={"reason": "told something else"}), 1),
    )
    for stranger in strangers:
        with pytest.raises(BrokenError, match="it is not of view 1"):
            await rig.follower(view, 1, stranger).begin(SECONDS)
    with pytest.raises(BrokenError, match="rank 1 did not connect") as raised:
        await leader.begin(0.1)
    assert raised.value.rank == 1


async def test_who_leads_has_to_prove_it_too(rig: Rig) -> None:
    view = rig.view(2)
    for other in (Identity(), rig.identities[1]):
        leader = rig.leader(view, other)
        # It lets everybody in, to have their word.
        await rig.door.enter(1, rig.credentials(view, 0), leader)
        led = asyncio.create_task(leader.begin(SECONDS))
        with pytest.raises(BrokenError, match="it is not of this view"):
            await rig.follower(view, 1).begin(SECONDS)
        await led


async def test_a_second_one_of_a_rank_is_refused(rig: Rig) -> None:
    lines = await rig.begun(2)
    view = rig.view(2)
    with pytest.raises(BrokenError, match="rank 1 is not waited for"):
        await rig.follower(view, 1).begin(SECONDS)
    lines[1].say(Word(kind=K.DONE))
    lines[0].say(Word(kind=K.DONE))
    assert (await next_word(lines[0])).kind is K.COMPLETED


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n", b"x" * (2 * LONGEST_WORD), b'{"kind": "beat"}\n'])
async def test_whoever_says_something_else_is_sent_away(rig: Rig, line: bytes) -> None:
    reader, writer = await asyncio.open_connection(*split_address(rig.address))
    writer.write(line)
    async with asyncio.timeout(SECONDS):
        said = await reader.read()
    assert b'"refused"' in said
    writer.close()


async def test_a_missing_leader_is_to_blame(rig: Rig) -> None:
    view = rig.view(2)
    rig.door.close()
    with pytest.raises(BrokenError, match="rank 0, which leads the view, cannot be joined") as raised:
        await rig.follower(view, 1).begin(SECONDS)
    assert raised.value.rank == 0


async def test_signs_of_life_of_one_reach_all(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BEAT_SECONDS", 0.02)
    lines = await rig.begun(3)
    waiting = [asyncio.create_task(line.next()) for line in lines]
    rig.lively.add(1)
    async with asyncio.timeout(SECONDS):
        while not {0, 2} <= set(rig.seen):  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()


async def test_a_peer_that_says_nothing_is_lost() -> None:
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue(1)
    server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
    it = Connection(*await asyncio.open_connection(*server.sockets[0].getsockname()))
    with pytest.raises(connection.LineError, match="it said nothing for"):
        await it.hear(0.05)
    it.close()
    (await accepted.get()).close()
    server.close()
