"""Snapshots in memory: kept by the next rank, given back to the bit, and never used by half."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from lmj_api.protocol import Snapshots
from lmj_api.topology import Topology
from lmj_api.view import Resume
from lmj_trainer.state.loss_scale import LossScale
from lmj_trainer.state.shelf import Shelf
from lmj_trainer.state.stage_state import Best
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.memory import MemoryTransport
from lmj_trainer.worker import keeper as keeper_module
from lmj_trainer.worker import snapshots as snapshots_module
from lmj_trainer.worker.keeper import Piece
from lmj_trainer.worker.snapshots import MemorySnapshots

from .conftest import small_config, small_state
from .pair import eventually

pytestmark = pytest.mark.integration

SECONDS = 20.0
EVERY = 10


class Rank:
    """One rank's pod and worker, without training."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank = group, rank
        self.state = small_state(small_config(num_hidden_layers=4), range(rank, rank + 1), seed=rank)[1]
        self.state.block.zero_()
        self.state.fill(-1)
        self.transport = MemoryTransport(group.network, f"rank-{rank}-{len(group.made)}")
        group.made.append(self.transport.address)
        self.warnings: list[str] = []
        arguments = (EVERY, rank, Topology(group.size), self.state, self.transport, None, group.patience, self.warnings.append)
        self.snapshots = MemorySnapshots(*arguments)

    def train_to(self, step: int) -> None:
        """The state of ``step``, and of no other."""
        self.snapshots.before_apply()
        generator = torch.Generator().manual_seed(1000 * self.rank + step)
        self.state.saved.copy_(torch.randn(self.state.saved.shape, generator=generator))
        self.state.seconds, self.state.evaluated, self.state.best = step + 0.5, step, Best(step, 0.25)
        self.state.loss_scale = LossScale(step)
        self.state.fill(step)

    def wait(self) -> None:
        thread = self.snapshots._thread
        if thread is not None:
            thread.join(SECONDS)
            assert not thread.is_alive()


class Group:
    def __init__(self, size: int, patience: float = SECONDS) -> None:
        self.size, self.patience = size, patience
        self.network: dict[str, MemoryTransport] = {}
        self.made: list[str] = []
        self.view = 0
        self.ranks = [Rank(self, rank) for rank in range(size)]

    def join(self) -> None:
        self.view += 1
        for each in self.ranks:
            peers = {other.rank: other.transport.address for other in self.ranks if other is not each}
            each.snapshots.join(self.view)
            each.transport.join(self.view, each.rank, peers)

    def begin(self) -> None:
        for each in self.ranks:
            each.snapshots.begin()
        self.wait()

    def take(self, step: int) -> None:
        for each in self.ranks:
            each.train_to(step)
            each.snapshots.take()
        self.wait()

    def wait(self) -> None:
        for each in self.ranks:
            each.wait()

    def replace(self, rank: int) -> Rank:
        """Its pod is lost; another is there."""
        self.ranks[rank].transport.close()
        self.ranks[rank] = Rank(self, rank)
        return self.ranks[rank]

    def held(self) -> list[tuple[list[int], list[int]]]:
        return [(has.own, has.kept) for each in self.ranks if (has := each.snapshots.held) is not None]

    def restore(self, resume: Resume) -> list[BaseException]:
        """In all ranks at once; what went wrong."""
        problems: list[BaseException] = []

        def run(each: Rank) -> None:
            try:
                each.snapshots.forget(resume.step)
                each.snapshots.restore(resume)
            except (ViewBrokenError, RuntimeError) as error:
                problems.append(error)

        threads = [threading.Thread(target=run, args=(each,)) for each in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        return problems

    def assert_at(self, step: int) -> None:
        for each in self.ranks:
            expected = torch.randn(each.state.saved.shape, generator=torch.Generator().manual_seed(1000 * each.rank + step))
            assert torch.equal(each.state.saved, expected)
            assert each.state.step == step
            assert (each.state.seconds, each.state.evaluated, each.state.best) == (step + 0.5, step, Best(step, 0.25))
            assert each.state.loss_scale == LossScale(step)
            assert not each.state.block[3 * each.state.size :].any()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (keeper_module, snapshots_module):
        monkeypatch.setattr(module, "PIECE", 1 << 13)


def test_the_operator_is_told_of_what_is_new_and_once() -> None:
    group = Group(2)
    group.join()
    group.begin()
    first = group.ranks[0].snapshots
    assert first.news() == Snapshots()
    group.take(10)
    assert first.news() == Snapshots(own=[10], kept=[10])
    assert first.news() is None
    group.take(20)
    first._taken.clear()
    assert first.news() is None, "its own shelf is another thread's meanwhile"
    first._taken.set()
    assert first.news() == Snapshots(own=[20, 10], kept=[20, 10])
    assert MemorySnapshots(
        None, 0, Topology(1), group.ranks[0].state, group.ranks[0].transport, None, SECONDS, print
    ).news() is None  # fmt: skip


def refuse_after(rank: Rank, messages: int) -> None:
    """Its keeper takes so many messages, and answers no more."""
    left = messages
    real = rank.snapshots._keeper._take

    def take(envelope: Envelope) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            real(envelope)

    rank.transport.inbox.divert(Kind.SNAPSHOT, take)


@pytest.mark.parametrize("size", [2, 3])
def test_each_is_kept_by_the_next_and_the_last_two_stay(size: int) -> None:
    group = Group(size)
    group.join()
    for step in (10, 20, 30):
        group.take(step)
        assert not any(each.snapshots.unsent for each in group.ranks)
    assert group.held() == [([30, 20], [30, 20])] * size


@pytest.mark.parametrize(("size", "lost"), [(2, (0,)), (2, (1,)), (3, (2,)), (4, (0, 2))])
def test_lost_memory_comes_from_the_neighbour(size: int, lost: tuple[int, ...]) -> None:
    group = Group(size)
    group.join()
    for step in (10, 20):
        group.take(step)
    for each in group.ranks:
        each.train_to(27)
    for rank in lost:
        group.replace(rank)
    group.join()
    assert group.restore(Resume(step=20, snapshot=True, fetched=list(lost))) == []
    group.assert_at(20)
    # The new pod keeps again what its neighbour's memory is for.
    group.begin()
    assert all(20 in own and 20 in kept for own, kept in group.held())
    group.take(30)
    assert all(own[0] == kept[0] == 30 for own, kept in group.held())


def test_what_came_after_the_snapshot_is_forgotten() -> None:
    group = Group(2)
    group.join()
    group.take(10)
    refuse_after(group.ranks[0], 0)
    for each in group.ranks:
        each.train_to(20)
        each.snapshots.take()
    group.ranks[0].wait()
    group.replace(1)
    group.join()
    assert group.restore(Resume(step=10, snapshot=True, fetched=[1])) == []
    group.assert_at(10)
    assert group.ranks[0].snapshots.held == Snapshots(own=[10], kept=[10])


@pytest.mark.parametrize("messages", [0, 1, 3])
def test_a_neighbour_that_does_not_answer_stops_nothing_and_has_nothing_by_half(messages: int) -> None:
    group = Group(2)
    group.join()
    group.take(10)
    refuse_after(group.ranks[1], messages)
    for each in group.ranks:
        each.train_to(20)
        each.snapshots.take()
    group.ranks[1].wait()
    group.ranks[0].train_to(21)  # waits for the copy alone
    assert [each.snapshots.unsent for each in group.ranks] == [True, False]
    assert group.held() == [([20, 10], [20, 10]), ([20, 10], [10])]
    # The next view offers it again, and what still comes of the older one is refused.
    group.ranks[1].transport.inbox.divert(Kind.SNAPSHOT, group.ranks[1].snapshots._keeper._take)
    group.join()
    group.begin()
    assert group.held() == [([20, 10], [20, 10])] * 2
    assert not any(each.snapshots.unsent for each in group.ranks)
    assert group.restore(Resume(step=20, snapshot=True)) == []
    group.assert_at(20)


def test_what_still_comes_of_an_older_view_is_not_taken() -> None:
    """A thread of the transport has a message in its hands while the next view begins."""
    group = Group(2)
    group.join()
    group.take(10)
    late: list[Envelope] = []
    group.ranks[1].transport.inbox.divert(Kind.SNAPSHOT, late.append)
    keeper = group.ranks[1].snapshots._keeper
    group.ranks[0].train_to(20)
    group.ranks[0].snapshots.take()
    eventually(lambda: len(late) == 1)
    pieces = [
        Piece(start, torch.full((keeper_module.PIECE,), 7.0)) for start in range(0, late[0].payload.elements, keeper_module.PIECE)
    ]
    answers: list[Envelope] = []
    group.ranks[1].transport.send = lambda rank, envelope: answers.append(envelope)
    group.ranks[1].snapshots.join(2)  # from here on, though the inbox does not know of it
    for envelope in (late[0], *(replace(late[0], payload=piece) for piece in pieces)):
        keeper._take(envelope)
    assert keeper.steps == [10]
    assert not answers, "nobody waits for one any more"
    # And not in the place of what comes in the new view.
    keeper._take(replace(late[0], view=2))
    keeper._take(replace(late[0], payload=pieces[0]))
    assert not any(bool((keeper._shelf.values(slot) == 7.0).any()) for slot in range(2))


def test_a_snapshot_that_is_gone_breaks_the_view() -> None:
    group = Group(2)
    group.join()
    group.take(10)
    group.replace(1)
    group.ranks[0].snapshots._keeper.forget(-1)
    group.join()
    problems = group.restore(Resume(step=10, snapshot=True, fetched=[1]))
    assert "rank 0 has no snapshot of step 10" in [str(problem) for problem in problems]
    assert group.ranks[1].state.holding is None


def test_a_snapshot_that_is_gone_is_waited_for_with_a_deadline() -> None:
    group = Group(2, patience=0.2)
    group.join()
    group.take(10)
    group.replace(1)
    group.join()
    (problem,) = group.restore(Resume(step=10, snapshot=True))
    assert isinstance(problem, ViewBrokenError)


def test_a_neighbour_that_gives_nothing_back_is_waited_for_with_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(2, patience=0.5)
    group.join()
    group.take(10)
    group.replace(1)
    monkeypatch.setattr(group.ranks[0].snapshots._keeper, "give_back", lambda *arguments: None)
    group.join()
    (problem,) = group.restore(Resume(step=10, snapshot=True, fetched=[1]))
    assert isinstance(problem, ViewBrokenError)
    assert problem.rank == 0


def test_the_checkpoints_copy_serves_for_both() -> None:
    group = Group(1)
    group.join()
    (alone,) = group.ranks
    alone.train_to(10)
    copy, waits = alone.state.saved.clone(), threading.Event()

    def copied() -> torch.Tensor:
        assert waits.wait(SECONDS)
        return copy

    alone.snapshots.take(copied)
    alone.train_to(11)  # the state itself is not read
    waits.set()
    alone.snapshots.release()
    alone.wait()
    assert alone.snapshots.held == Snapshots(own=[10])
    assert group.restore(Resume(step=10, snapshot=True)) == []
    group.assert_at(10)


def test_the_state_does_not_change_before_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(1)
    group.join()
    (alone,) = group.ranks
    alone.train_to(10)
    waits, prepare = threading.Event(), Shelf.prepare

    def prepare_late(shelf: Shelf, layout: int, elements: int) -> None:
        assert waits.wait(SECONDS)
        prepare(shelf, layout, elements)

    monkeypatch.setattr(Shelf, "prepare", prepare_late)
    monkeypatch.setattr(snapshots_module, "_COPY_TIMEOUT", 0.05)
    alone.snapshots.take()
    with pytest.raises(TimeoutError, match=r"the state was not copied within 0\.05 s"):
        alone.snapshots.before_apply()
    waits.set()
    alone.wait()
    alone.train_to(11)
    assert group.restore(Resume(step=10, snapshot=True)) == []
    group.assert_at(10)


def test_a_copy_that_does_not_come_is_no_endless_wait() -> None:
    group = Group(1, patience=0.2)
    group.join()
    (alone,) = group.ranks
    waits = threading.Event()
    alone.train_to(10)
    alone.snapshots.take(lambda: alone.state.saved if waits.wait(SECONDS) else None)
    with pytest.raises(TimeoutError, match=r"snapshot-10 does not end within 0\.2 s"):
        alone.snapshots.forget(10)
    waits.set()
    alone.wait()


def test_no_copy_no_snapshot() -> None:
    group = Group(1)
    group.join()
    (alone,) = group.ranks
    alone.train_to(10)
    alone.snapshots.take(lambda: None)
    alone.wait()
    assert alone.snapshots.held == Snapshots()
    assert alone.snapshots.unsent
    assert "it could not be copied" in alone.warnings[0]


def test_without_it_none_are_taken_or_kept(make_state: Callable[..., Any], make_config: Callable[..., Any]) -> None:
    state = make_state(make_config(), range(1))[1]
    snapshots = MemorySnapshots(None, 0, Topology(2), state, MemoryTransport({}, "a"), None, SECONDS, lambda text: None)
    assert snapshots.held is None
    assert snapshots.unsent, "a rank without them keeps the others from taking any"
    assert not snapshots.due(10)
    snapshots.join(1)
    snapshots.begin()
    snapshots.forget(-1)


def test_a_snapshot_of_another_layout_is_not_the_ranks_own() -> None:
    """Another model under the same name, beside whose weights these adapters mean nothing."""
    shelves = os.memfd_create("own"), os.memfd_create("kept")

    def worker(layout: str) -> tuple[Any, MemorySnapshots]:
        state = small_state(small_config(num_hidden_layers=4), range(1), seed=0)[1]
        state.layout += layout
        transport = MemoryTransport({}, "rank-0")
        transport.join(1, 0, {})
        return state, MemorySnapshots(EVERY, 0, Topology(1), state, transport, shelves, SECONDS, print)

    state, snapshots = worker("")
    state.fill(10)
    snapshots.take()
    thread = snapshots._thread
    assert thread is not None
    thread.join(SECONDS)
    assert worker("")[1].held == Snapshots(own=[10], kept=[])
    assert worker(" of other frozen weights")[1].held == Snapshots(own=[], kept=[])
    for descriptor in shelves:
        os.close(descriptor)
