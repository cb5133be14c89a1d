"""Which layers a stage holds."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmj_trainer.model.partition import EMBEDDINGS_COST, HEAD_COST, partition


def dearest(counts: list[int]) -> float:
    last = len(counts) - 1
    return max(n + EMBEDDINGS_COST * (i == 0) + HEAD_COST * (i == last) for i, n in enumerate(counts))


@given(st.integers(1, 40).flatmap(lambda layers: st.tuples(st.just(layers), st.integers(1, layers))))
def test_covers_all_layers_in_order_at_least_one_each(sizes: tuple[int, int]) -> None:
    layers, stages = sizes
    cut = partition(layers, stages)
    assert len(cut) == stages
    assert [i for part in cut for i in part] == list(range(layers))
    assert min(map(len, cut)) >= 1


@given(st.integers(1, 9).flatmap(lambda layers: st.tuples(st.just(layers), st.integers(1, layers))))
def test_no_cut_is_better(sizes: tuple[int, int]) -> None:
    layers, stages = sizes
    best = min(dearest([b - a for a, b in pairwise([0, *inner, layers])]) for inner in combinations(range(1, layers), stages - 1))
    assert dearest([len(part) for part in partition(layers, stages)]) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(
    ("layers", "stages", "counts"), [(12, 2, [6, 6]), (12, 3, [4, 4, 4]), (7, 2, [3, 4]), (5, 4, [1, 2, 1, 1]), (3, 3, [1, 1, 1])]
)
def test_examples(layers: int, stages: int, counts: list[int]) -> None:
    assert [len(part) for part in partition(layers, stages)] == counts


def test_given_layers() -> None:
    assert partition(6, 3, [1, 4, 1]) == [range(1), range(1, 5), range(5, 6)]


@pytest.mark.parametrize("given_layers", [[3, 2], [3, 3, 3], [6], [6, 0], [7, -1]])
def test_given_layers_that_do_not_add_up(given_layers: list[int]) -> None:
    with pytest.raises(ValueError, match="2 positive numbers that add up to 6"):
        partition(6, 2, given_layers)


def test_more_stages_than_layers() -> None:
    with pytest.raises(ValueError, match="3 stages need at least 3 layers, the model has 2"):
        partition(2, 3)
