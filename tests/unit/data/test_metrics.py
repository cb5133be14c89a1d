import pytest

from lmj_trainer.metrics import count, evaluate_counts


def test_two_labels_have_the_f1_of_the_second() -> None:
    result = evaluate_counts([[5, 1], [2, 4]], 6.0, ["no", "yes"], "test", 7)
    assert (result.samples, result.loss, result.accuracy, result.step) == (12, 0.5, 0.75, 7)
    assert result.f1 == pytest.approx(8 / 11)


def test_more_labels_have_the_mean_f1_and_absent_ones_count_as_0() -> None:
    result = evaluate_counts([[2, 0, 0], [0, 2, 0], [0, 0, 0]], 1.0, ["a", "b", "c"], "validation", 0)
    assert result.f1 == pytest.approx(2 / 3)


def test_counts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="not 2 by 2"):
        evaluate_counts([[1]], 0.0, ["a", "b"], "test", 0)
    with pytest.raises(ValueError, match="no row of test"):
        evaluate_counts([[0, 0], [0, 0]], 0.0, ["a", "b"], "test", 0)


def test_counting() -> None:
    confusion = [[0, 0], [0, 0]]
    count(confusion, [0, 1, 1], [1, 1, 0])
    assert confusion == [[0, 1], [1, 1]]
