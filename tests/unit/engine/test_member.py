"""In which order a rank's process leaves a view, follows, and joins the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lmj_api.protocol import EventKind, Holding, WorkerPhase
from lmj_trainer.transport.feed import Offer
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.member import Member


class Stage:
    """A member of which each part says what it does."""

    def __init__(self, orders: list[Any], *, replaced: bool = False) -> None:
        self.done: list[str] = []
        self._orders, self._views = orders, 0
        feed = SimpleNamespace(listen=lambda call: None)
        transport = SimpleNamespace(feed=feed, address="here", listens=lambda: True, close=lambda: None)
        control = SimpleNamespace(offer=None, emit=self._emit, next_order=lambda: self._orders.pop(0))
        trainer = SimpleNamespace(
            run=self._train, settle=self._does("settle"), replaced=replaced, snapshots=SimpleNamespace(held=None)
        )
        follower = SimpleNamespace(run=lambda offer: self.done.append("follow"))
        state = SimpleNamespace(holding=Holding(step=6))
        self.member = Member(trainer, follower, state, transport, control, "layers")  # type: ignore[arg-type]

    def _does(self, what: str) -> Any:
        return lambda: self.done.append(what)

    def _emit(self, kind: EventKind, message: str = "", **details: Any) -> None:
        if kind is EventKind.LOST_PEER:
            assert details["holding"] == Holding(step=6)
        if kind is not EventKind.READY:
            self.done.append(str(kind))

    def _train(self, view: Any) -> WorkerPhase:
        self._views += 1
        self.done.append(f"view {view.number}")
        if self._orders:
            raise ViewBrokenError("the next view has other members")
        return WorkerPhase.COMPLETED


VIEWS = [SimpleNamespace(number=number, reason="why") for number in (1, 2)]


def test_a_rank_that_stays_is_heard_before_its_update() -> None:
    stage = Stage([*VIEWS])
    assert stage.member.serve() == 0
    assert stage.done == ["view 1", str(EventKind.LOST_PEER), "settle", "view 2"]


def test_a_rank_that_is_replaced_leaves_the_cores_to_the_others() -> None:
    stage = Stage([VIEWS[0], None], replaced=True)
    assert stage.member.serve() == 0
    assert stage.done == ["view 1", str(EventKind.LOST_PEER), str(EventKind.DRAINED)]


@pytest.mark.parametrize("replaced", [False, True])
def test_who_follows_has_all_that_was_committed_before_and_after(replaced: bool) -> None:
    offer = Offer.__new__(Offer)
    stage = Stage([offer, VIEWS[1]], replaced=replaced)
    assert stage.member.serve() == 0
    assert stage.done == ["settle", "follow", "settle", "view 2"]
