"""Lists for people."""

import pytest

from lmj_operator.plan.observe.lists import NAMED, few, of_ranks


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, "0"),
        (NAMED, "0, 1, 2, 3, 4, 5, 6, 7"),
        (NAMED + 1, "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"),
        (1024, "0, 1, 2, 3, 4, 5, 6, 7 and 1016 more"),
    ],
)
def test_many_are_counted_and_a_few_named(count: int, told: str) -> None:
    assert few(range(count)) == told
    assert of_ranks(range(count)) == f"rank{'s' if count > 1 else ''} {told}"
