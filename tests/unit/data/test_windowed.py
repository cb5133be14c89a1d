from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmj_trainer.data.windowed import Window, Windowed

COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=30)
SEEDS = st.integers(0, 2**32 - 1)


def order_of(windowed: Windowed, epoch: int, first: int, count: int) -> list[tuple[int, int]]:
    """The group and the row in it of each."""
    found = windowed.find(epoch, first, count)
    return [
        (int(windowed.groups(part.window)[member]), int(row))
        for part in found
        for member, row in zip(part.members, part.rows, strict=True)
    ]


@given(COUNTS, st.integers(1, 12), SEEDS, st.integers(0, 1000))
def test_an_epoch_has_each_row_once_window_after_window(counts: list[int], size: int, seed: int, epoch: int) -> None:
    windowed = Windowed(np.array(counts), size, seed)
    assert windowed.rows == sum(counts)
    whole = order_of(windowed, epoch, 0, windowed.rows)
    assert sorted(whole) == [(group, row) for group, rows in enumerate(counts) for row in range(rows)]
    place, seen = 0, list[int]()
    for number in range(windowed.windows):
        window = Window(epoch, number)
        groups = windowed.groups(window).tolist()
        assert windowed.begin(window) == place
        assert len(groups) == size or number == windowed.windows - 1
        rows = sum(counts[group] for group in groups)
        assert {group for group, _ in whole[place : place + rows]} == set(groups)
        place, seen = place + rows, seen + groups
    assert sorted(seen) == list(range(len(counts)))


@given(COUNTS, st.integers(1, 12), SEEDS, st.integers(0, 9), st.data())
def test_any_part_of_it_is_found_without_what_comes_before(
    counts: list[int], size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    whole = order_of(Windowed(np.array(counts), size, seed), epoch, 0, sum(counts))
    first = data.draw(st.integers(0, sum(counts) - 1))
    count = data.draw(st.integers(1, sum(counts) - first))
    # Another one, which was never asked for anything.
    windowed = Windowed(np.array(counts), size, seed)
    assert order_of(windowed, epoch, first, count) == whole[first : first + count]
    found = windowed.find(epoch, first, count)
    assert [part.window for part in found] == sorted({part.window for part in found}), "one after the other"
    assert windowed.at(epoch, first) == found[0].window
    # One that was asked for another epoch in between.
    order_of(windowed, epoch + 1, 0, sum(counts))
    assert order_of(windowed, epoch, first, count) == whole[first : first + count]


def test_epochs_and_seeds_have_other_orders_and_windows_other_rows_together() -> None:
    counts = np.full(64, 50)
    orders = {tuple(order_of(Windowed(counts, 8, seed), epoch, 0, 3200)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    windowed = Windowed(counts, 8, 0)
    together = {frozenset(windowed.groups(Window(epoch, number)).tolist()) for epoch in range(2) for number in range(8)}
    assert len(together) == 16
    # Rows of one window are mixed: neighbours are of the same group one time in eight.
    groups = [group for group, _ in order_of(windowed, 0, 0, 3200)]
    same = sum(a == b for a, b in pairwise(groups)) / len(groups)
    assert 0.09 < same < 0.16


def test_the_order_stays_what_it_is() -> None:
    """A run may be gone on with by a later version."""
    windowed = Windowed(np.array([3, 1, 4, 2]), 2, 7)
    assert [windowed.groups(Window(2, number)).tolist() for number in range(2)] == ORDER[0]
    assert order_of(windowed, 2, 0, 10) == ORDER[1]


ORDER = ([[1, 2], [0, 3]], [(2, 1), (1, 0), (2, 2), (2, 3), (2, 0), (3, 0), (0, 1), (0, 2), (3, 1), (0, 0)])


@pytest.mark.parametrize(("counts", "size"), [([], 1), ([1, 0], 1), ([1], 0)])
def test_what_is_no_order(counts: list[int], size: int) -> None:
    with pytest.raises(ValueError, match="each group needs rows"):
        Windowed(np.array(counts, dtype=np.int64), size, 0)


def test_a_place_outside_of_the_epoch() -> None:
    windowed = Windowed(np.array([2, 3]), 1, 0)
    for place in (-1, 5):
        with pytest.raises(ValueError, match="in an epoch of 5"):
            windowed.at(0, place)
    with pytest.raises(ValueError, match="no row 5 in an epoch of 5"):
        windowed.find(0, 4, 2)
