"""How often all jobs together do something expensive."""

from lmj_operator.backend.budget import Budget


def test_some_at_once_and_then_one_in_a_while() -> None:
    budget = Budget(burst=3, seconds=2.0)
    assert [budget.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert [budget.take(at) for at in (101.9, 102.0, 102.0, 104.0)] == [False, True, False, True]


def test_a_job_that_asks_with_an_earlier_time_earns_the_next_one_nothing() -> None:
    """Each takes the time when its turn begins, and waits for answers in between."""
    budget = Budget(burst=1, seconds=1.0)
    made = 0
    for second in range(100, 110):
        for _ in range(10):
            made += budget.take(float(second))
            made += budget.take(second - 5.0)
    assert made == 10
