"""What requests are signed over: each counts for a while, and a nonce once with it."""

import pytest

from lmj_trainer.agent.challenges import LONGEST_SECONDS, MOST_REQUESTS, Challenges


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def challenges(clock: Clock) -> Challenges:
    return Challenges(clock)


def used(challenges: Challenges, challenge: str, nonce: str) -> bool:
    """Whether it counted now."""
    open_before = challenges.is_open(challenge, nonce)
    if open_before:
        challenges.use(challenge, nonce)
    assert not challenges.is_open(challenge, nonce)
    return open_before


def test_a_nonce_counts_once_and_requests_may_overtake_each_other(challenges: Challenges) -> None:
    now = challenges.current
    assert [used(challenges, now, nonce) for nonce in ("b", "a", "b", "c", "a")] == [True, True, False, True, False]
    with pytest.raises(KeyError):
        challenges.use(now, "a")


def test_only_what_was_told_counts(challenges: Challenges) -> None:
    assert [used(challenges, challenge, "a") for challenge in ("", "x", challenges.current[:-1])] == [False] * 3
    with pytest.raises(KeyError):
        challenges.use("", "a")
    assert challenges.current != Challenges().current


def test_the_newest_two_count(challenges: Challenges, clock: Clock) -> None:
    first = challenges.current
    assert used(challenges, first, "a")
    clock.now += LONGEST_SECONDS - 1
    assert challenges.current == first
    clock.now += 1
    second = challenges.current
    assert second != first
    assert used(challenges, first, "late")
    assert not used(challenges, first, "a"), "it was used before"
    assert used(challenges, second, "a"), "that is another challenge"
    clock.now += LONGEST_SECONDS
    assert not used(challenges, first, "later"), "nobody has to ask for the next one before it is over"
    assert used(challenges, second, "late")


def test_what_was_held_back_for_long_is_worth_nothing_though_nobody_asked_meanwhile(challenges: Challenges, clock: Clock) -> None:
    first = challenges.current
    clock.now += 2 * LONGEST_SECONDS - 1
    assert challenges.is_open(first, "a")
    other = Challenges(clock)
    second = other.current
    clock.now += 2 * LONGEST_SECONDS
    assert not other.is_open(second, "a")


@pytest.mark.parametrize("late", [False, True])
def test_what_is_remembered_is_bounded(challenges: Challenges, late: bool) -> None:
    told = challenges.current
    seen = {told}
    for number in range(5 * MOST_REQUESTS):
        if not late:
            told = challenges.current
        if used(challenges, told, str(number)):
            seen.add(challenges.current)
        assert len(challenges._used) + len(challenges._used_before) <= 3 * MOST_REQUESTS
    assert len(seen) >= 2
