"""Snapshots on a shelf: whole or not there, whenever the process that wrote them died."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from lmj_trainer.state.facts import Facts
from lmj_trainer.state.loss_scale import LossScale
from lmj_trainer.state.shelf import Shelf

LAYOUT, ELEMENTS = 7, 1000


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("shelf")
    yield descriptor
    os.close(descriptor)


def facts(step: int) -> Facts:
    return Facts(step + 0.5, step - 1, step - 2, step / 100, loss_scale=LossScale(step, 12, 345, 6))


def put(shelf: Shelf, step: int) -> int:
    slot = shelf.clear()
    shelf.values(slot).fill_(step)
    shelf.complete(slot, step, facts(step))
    return slot


def assert_whole(shelf: Shelf, *steps: int) -> None:
    assert shelf.steps == sorted(steps, reverse=True)
    for step in steps:
        slot = shelf.find(step)
        assert slot is not None
        assert torch.equal(shelf.values(slot), torch.full((ELEMENTS,), float(step)))
        assert shelf.facts(slot) == facts(step)


def test_the_last_two_outlive_the_process(memory: int) -> None:
    shelf = Shelf(memory)
    assert (shelf.layout, shelf.steps) == (None, [])
    shelf.prepare(LAYOUT, ELEMENTS)
    for step in (10, 20, 30):
        put(shelf, step)
    assert_whole(shelf, 20, 30)
    again = Shelf(memory)
    assert (again.layout, again.elements) == (LAYOUT, ELEMENTS)
    assert_whole(again, 20, 30)
    again.prepare(LAYOUT, ELEMENTS)
    assert_whole(again, 20, 30)


@pytest.mark.parametrize(
    "remembered",
    [
        Facts(seconds=1.5, evaluated=-1, best_step=None, best_score=None),
        Facts(seconds=1.5, evaluated=0, best_step=0, best_score=0.25),
        Facts(seconds=1.5, evaluated=1, best_step=1, best_score=0.25),
    ],
)
def test_the_best_validation_may_be_of_any_step(memory: int, remembered: Facts) -> None:
    shelf = Shelf(memory)
    shelf.prepare(LAYOUT, ELEMENTS)
    slot = shelf.clear()
    shelf.complete(slot, 2, remembered)
    assert Shelf(memory).facts(slot) == remembered


@pytest.mark.parametrize("written", [0, 1, ELEMENTS // 2, ELEMENTS])
def test_what_was_being_written_at_a_death_does_not_count(memory: int, written: int) -> None:
    shelf = Shelf(memory)
    shelf.prepare(LAYOUT, ELEMENTS)
    for step in (10, 20):
        put(shelf, step)
    slot = shelf.clear()
    shelf.values(slot)[:written].fill_(30)
    # Here the process dies: the newest whole one is there, and the torn one's place is the next to be used.
    again = Shelf(memory)
    assert_whole(again, 20)
    assert put(again, 30) == slot
    assert_whole(again, 20, 30)


def test_the_facts_are_there_before_the_snapshot_counts(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(memory)
    shelf.prepare(LAYOUT, ELEMENTS)
    put(shelf, 10)
    slot = shelf.clear()
    shelf.values(slot).fill_(20)
    real, left = Shelf._set, 0

    class Killed(Exception):  # noqa: N818
        pass

    def dying(self: Shelf, *arguments: int) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Shelf, "_set", dying)
    for writes in range(5):
        left = writes
        with pytest.raises(Killed):
            shelf.complete(slot, 20, facts(20))
        assert_whole(Shelf(memory), 10)
    left = 5
    shelf.complete(slot, 20, facts(20))
    assert_whole(Shelf(memory), 10, 20)


def test_another_layout_empties_it(memory: int) -> None:
    shelf = Shelf(memory)
    shelf.prepare(LAYOUT, ELEMENTS)
    put(shelf, 10)
    other = Shelf(memory)
    other.prepare(LAYOUT + 1, ELEMENTS // 2)
    assert other.steps == []
    assert Shelf(memory).layout == LAYOUT + 1


def test_a_file_that_was_never_finished_is_bare(memory: int) -> None:
    os.ftruncate(memory, 1 << 16)  # killed between making room and saying what for
    assert Shelf(memory).steps == []


def test_what_is_done_again_is_forgotten() -> None:
    shelf = Shelf()
    shelf.forget(5)  # a bare one has nothing
    shelf.prepare(LAYOUT, ELEMENTS)
    put(shelf, 10)
    put(shelf, 20)
    shelf.forget(10)
    assert_whole(shelf, 10)
    shelf.forget(-1)
    assert shelf.steps == []


def test_a_bare_shelf_says_so() -> None:
    for look in (Shelf().values, Shelf().facts):
        with pytest.raises(RuntimeError, match="prepare it first"):
            look(0)


def test_no_best_yet() -> None:
    shelf = Shelf()
    shelf.prepare(LAYOUT, ELEMENTS)
    none = Facts(seconds=1.0, evaluated=-1, best_step=None, best_score=None)
    slot = shelf.clear()
    shelf.complete(slot, 3, none)
    assert shelf.facts(slot) == none
