"""Scores from counts."""

from __future__ import annotations

import pytest

from lmj_trainer.metrics import count, evaluate_counts


def test_two_labels() -> None:
    result = evaluate_counts([[50, 10], [5, 35]], 42.0, ["neg", "pos"], "validation", 7)
    assert (result.samples, result.step, result.split) == (100, 7, "validation")
    assert result.accuracy == 0.85
    assert result.loss == 0.42
    precision, recall = 35 / 45, 35 / 40
    assert result.f1 == pytest.approx(2 * precision * recall / (precision + recall))


def test_more_labels_count_alike() -> None:
    result = evaluate_counts([[2, 0, 0], [1, 1, 0], [0, 0, 4]], 1.0, ["a", "b", "c"], "test", 1)
    assert result.f1 == pytest.approx((0.8 + 2 / 3 + 1.0) / 3)


def test_a_label_that_is_nowhere_has_an_f1_of_0() -> None:
    assert evaluate_counts([[3, 0], [0, 0]], 1.0, ["a", "b"], "test", 1).f1 == 0.0


@pytest.mark.parametrize("confusion", [[[1, 2]], [[1], [2]], [[1, 2, 3], [1, 2, 3]]])
def test_a_matrix_of_another_size(confusion: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="2 labels is not 2 by 2"):
        evaluate_counts(confusion, 1.0, ["a", "b"], "test", 1)


def test_nothing_counted() -> None:
    with pytest.raises(ValueError, match="no row of test"):
        evaluate_counts([[0, 0], [0, 0]], 0.0, ["a", "b"], "test", 1)


def test_count() -> None:
    confusion = [[0, 0], [0, 0]]
    count(confusion, [0, 1, 1], [1, 1, 1])
    assert confusion == [[0, 1], [0, 2]]
