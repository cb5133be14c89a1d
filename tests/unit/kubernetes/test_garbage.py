"""Garbage collection between what is computed."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from lmj_operator.backend.rounds import turn
from lmj_operator.controller import garbage


class Link:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
async def collecting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Task[None]]:
    monkeypatch.setattr(garbage, "PAUSE_SECONDS", 0.001)
    task = asyncio.create_task(garbage.collect_garbage())
    await asyncio.sleep(0)
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gc.unfreeze()


async def gone(link: "weakref.ref[Link]") -> None:
    async with asyncio.timeout(10):
        while link() is not None:  # noqa: ASYNC110 - a collection tells nobody
            await asyncio.sleep(0.001)


def many() -> list[list[int]]:
    """More new objects than Python would make before it looks through them."""
    return [[] for _ in range(10 * garbage.THRESHOLDS[0])]


async def test_garbage_is_collected_between_what_is_computed_and_not_meanwhile(collecting: asyncio.Task[None]) -> None:
    link = weakref.ref(Link())
    kept = many()
    assert link() is not None
    await gone(link)
    assert kept


async def test_what_stayed_is_looked_through_less_often(collecting: asyncio.Task[None]) -> None:
    link = Link()
    kept = [many()]
    async with asyncio.timeout(10):
        while gc.get_count()[1] == 0:  # noqa: ASYNC110 - a collection tells nobody
            await asyncio.sleep(0.001)
    old, link = weakref.ref(link), Link()
    for _ in range(garbage.THRESHOLDS[1]):
        kept.append(many())
        await asyncio.sleep(0.01)
    await gone(old)


async def test_nothing_else_that_takes_long_is_in_the_round_of_a_long_collection(collecting: asyncio.Task[None]) -> None:
    rounds, others, collections = 0, set[int](), set[int]()

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def compute() -> None:
        while True:
            await turn(long=True)
            others.add(rounds)

    def seen(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] > 0:
            collections.add(rounds)

    tasks = [asyncio.create_task(count()), *(asyncio.create_task(compute()) for _ in range(5))]
    gc.callbacks.append(seen)
    kept = []
    try:
        for _ in range(60):
            link = weakref.ref(Link())
            kept.append(many())
            await gone(link)
    finally:
        gc.callbacks.remove(seen)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert len(collections) >= 10
    assert len(others) >= 20
    assert not others & collections


async def test_python_collects_by_itself_again_when_it_ends(collecting: asyncio.Task[None]) -> None:
    assert not gc.isenabled()
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    assert gc.isenabled()


async def test_all_is_looked_through_when_memory_has_grown(
    collecting: asyncio.Task[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link()
    kept = [many()]
    gc.collect(1)  # it is old from now on
    old, link = weakref.ref(link), Link()
    for _ in range(5):
        kept.append(many())
        await asyncio.sleep(0.01)
    assert old() is not None
    monkeypatch.setattr(garbage, "GROWTH", -(1 << 40))
    kept += [many() for _ in range(5)]
    async with asyncio.timeout(10):
        while old() is not None:
            kept.append(many())
            await asyncio.sleep(0.01)
