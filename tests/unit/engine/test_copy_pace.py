"""How fast a copy goes beside steps of any length: it costs them little where it can, and ends in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lmj_trainer.follow.copy_pace import CopyPace

BERT = 1_300_000_000
"""Bytes of weights and moments."""
PART = 6 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Copied:
    """A copy, in parts, beside steps one after the other."""

    def __init__(self, size: int, usual: float | None, *, gentle: bool = True) -> None:
        self.clock, self.size, self.sent, self.usual = Clock(), size, 0, usual
        self.pace = CopyPace(size, gentle=gentle, usual=lambda: self.usual, clock=self.clock)

    def during(self, seconds: float) -> int:
        """Bytes that are sent in so many seconds of whatever is under way."""
        before, end = self.sent, self.clock.now + seconds
        while self.sent < self.size:
            wait = self.pace.wait(self.sent)
            if self.clock.now + wait > end:
                break
            self.clock.now += wait
            self.sent += min(PART, self.size - self.sent)
        self.clock.now = end
        return self.sent - before

    def step(self, cost: Callable[[float], float], usual: float) -> float:
        """One that takes ``usual`` seconds, and ``cost`` of the part of the state that is sent in it, and of what was before; its seconds."""
        self.pace.step_begins()
        sent = self.during(usual)
        seconds = usual + cost(sent / self.size)
        self.clock.now += seconds - usual
        self.pace.step_ends(seconds)
        return seconds

    def steps(self, cost: Callable[[float], float], usual: float) -> Iterator[float]:
        self.pace.step_begins()
        self.pace.begin()
        while self.sent < self.size:
            yield self.step(cost, usual)


def free(share: float) -> float:
    return 0.0


@pytest.mark.parametrize(("size", "seconds"), [(300_000_000, 1.0), (BERT, 4.0), (100 * BERT, 4.0)])
def test_a_move_goes_as_fast_as_ever(size: int, seconds: float) -> None:
    copied = Copied(size, 15.0, gentle=False)
    copied.pace.begin()
    for _ in range(3):
        copied.pace.step_begins()
        copied.pace.step_ends(60.0)
    assert copied.during(seconds - 0.1) < size
    copied.during(0.2)
    assert copied.sent == size


def test_a_gentle_one_does_so_while_nothing_trains() -> None:
    copied = Copied(BERT, 15.0)
    copied.pace.begin()
    copied.during(4.1)
    assert copied.sent == BERT


def test_a_step_gets_a_fourth_of_the_state() -> None:
    copied = Copied(BERT, 6.0)
    copied.pace.step_begins()
    copied.pace.begin()
    assert copied.during(6.0) == pytest.approx(BERT / 4, abs=PART)


def test_all_of_it_takes_a_minute_beside_long_steps() -> None:
    copied = Copied(BERT, 100.0)
    copied.pace.step_begins()
    copied.pace.begin()
    assert copied.during(30.0) == pytest.approx(BERT / 2, abs=PART)
    copied.during(30.1)
    assert copied.sent == BERT


def test_a_small_state_does_not_take_that_long() -> None:
    copied = Copied(20_000_000, 100.0)
    copied.pace.step_begins()
    copied.pace.begin()
    copied.during(1.1)
    assert copied.sent == copied.size


@pytest.mark.parametrize("usual", [0.1, 2.0, 15.0, 100.0])
def test_it_ends_in_bounded_time_whatever_steps_take(usual: float) -> None:
    copied = Copied(BERT, usual)
    begin = copied.clock.now
    took = list(copied.steps(lambda share: usual, usual))  # twice as long, whatever is sent
    assert copied.clock.now - begin <= 60.0 + max(took)
    assert len(took) <= max(12, 4.0 / (2 * usual)) + 1  # no copy takes less than 4 s


def test_one_that_costs_nothing_is_as_fast_as_ever_within_few_steps() -> None:
    copied = Copied(BERT, 2.0)
    begin = copied.clock.now
    assert list(copied.steps(free, 2.0)) == [2.0] * 3  # a fourth in the first, then all that a second has room for
    assert copied.clock.now - begin == 6.0


def test_one_that_costs_much_gets_slower_until_steps_are_about_as_they_were() -> None:
    """At 250 MB a second steps of 2 s would take 1.2 times as long."""
    copied = Copied(BERT, 2.0)
    took = list(copied.steps(lambda share: 2.0 * 0.2 * share / (2.0 * 250e6 / BERT), 2.0))
    assert took[0] > 2.0 * 1.05  # how much is not known before
    assert max(took[2:]) <= 2.0 * 1.05
    assert len(took) <= 12


def test_the_step_in_which_it_began_tells_nothing() -> None:
    copied = Copied(BERT, 6.0)
    copied.pace.step_begins()
    copied.pace.begin()
    copied.pace.step_ends(60.0)
    copied.pace.step_begins()
    assert copied.pace.rate == BERT / 4 / 6.0


@pytest.mark.parametrize(("longer", "share"), [(1.02, 1 / 2), (1.04, 1 / 4), (1.06, 1 / 8)])
def test_a_step_beside_it_halves_or_doubles_the_pace(longer: float, share: float) -> None:
    copied = Copied(BERT, 6.0)
    copied.pace.begin()
    copied.pace.step_begins()
    copied.pace.step_ends(6.0 * longer)
    copied.pace.step_begins()
    assert copied.pace.rate == pytest.approx(BERT * share / 6.0)


def test_a_step_gets_a_twelfth_however_long_it_is() -> None:
    """All steps that come bring more gradients than that."""
    copied = Copied(BERT, 2.0)
    copied.pace.begin()
    for _ in range(9):
        copied.pace.step_begins()
        copied.pace.step_ends(100.0)
    copied.pace.step_begins()
    assert copied.pace.rate == pytest.approx(BERT / 12 / 2.0)


def test_a_step_that_is_given_up_tells_nothing() -> None:
    copied = Copied(BERT, 6.0)
    copied.pace.begin()
    copied.pace.step_begins()
    copied.pace.step_ends(None)
    assert copied.pace.rate == BERT / 4
    copied.pace.step_begins()
    assert copied.pace.rate == BERT / 4 / 6.0


def test_what_a_step_takes_is_asked_for_until_it_is_known_and_not_again() -> None:
    copied = Copied(BERT, None)
    copied.pace.begin()
    copied.pace.step_begins()
    assert copied.pace.rate == BERT / 60
    copied.pace.step_ends(1.0)
    copied.usual = 6.0
    copied.pace.step_begins()
    assert copied.pace.rate == BERT / 4 / 6.0
    copied.usual = 12.0
    copied.pace.step_begins()
    assert copied.pace.rate == BERT / 4 / 6.0


def test_what_was_not_sent_in_time_is_made_up_for() -> None:
    """While gradients are out nothing is copied."""
    copied = Copied(BERT, 6.0)
    copied.pace.step_begins()
    copied.pace.begin()
    copied.clock.now += 3.0
    assert copied.during(3.0) == pytest.approx(BERT / 4, abs=PART)
