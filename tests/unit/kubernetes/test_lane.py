"""The lane for those who want more than anybody needs: so much a second, of all of them together."""

import asyncio
import time

import pytest

from lmj_operator.backend.kubernetes.lane import Lane
from lmj_operator.backend.turns import JOB, Key


class Clock:
    """A clock that sleeps move; who slept until when is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.woke: list[tuple[Key, float]] = []
        self._sleep = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self.sleep)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    async def sleep(self, seconds: float) -> None:
        await self._sleep(0)
        self.now += seconds
        self.woke.append((JOB.get(), self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def work(lane: Lane, key: Key, times: int, pieces: int) -> None:
    JOB.set(key)
    for _ in range(times):
        await lane.wait(pieces)


async def test_all_who_wait_have_one_rate_together_and_namespaces_take_turns(clock: Clock) -> None:
    lane = Lane(100.0)
    many = [work(lane, ("a", f"storm-{number}"), 4, 16) for number in range(10)]
    await asyncio.gather(*(asyncio.create_task(each) for each in [*many, work(lane, ("b", "one"), 2, 8)]))
    assert clock.now == pytest.approx(1000 + (10 * 4 * 16 + 2 * 8) / 100.0)
    assert max(number for number, (key, _) in enumerate(clock.woke) if key[0] == "b") <= 5
    assert {key for key, _ in clock.woke[:12]} >= {("a", f"storm-{number}") for number in range(10)}, (
        "and in a namespace its jobs do"
    )


async def test_after_a_rest_some_need_not_wait(clock: Clock) -> None:
    lane = Lane(8.0, burst=3)
    await work(lane, ("a", "one"), 3, 1)
    assert (clock.now, clock.woke) == (1000.0, [])
    await work(lane, ("a", "one"), 2, 1)
    assert [at for _, at in clock.woke] == [1000.125, 1000.25]
    clock.now += 0.125
    await work(lane, ("b", "two"), 1, 1)
    assert len(clock.woke) == 2, "one was earned"
    clock.now += 1e6
    await work(lane, ("b", "two"), 5, 1)
    assert len(clock.woke) == 4, "and no more than at first"
