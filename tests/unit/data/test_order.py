import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmj_api.spec import Training
from lmj_trainer.data.order import epoch_order, grouped, micro_batches, selection_order, step_rows, steps_per_epoch, total_steps


def test_an_epochs_order_is_a_permutation_that_seed_and_epoch_decide() -> None:
    order = epoch_order(3, 1, 100)
    assert sorted(order) == list(range(100))
    epoch_order.cache_clear()
    assert (order == epoch_order(3, 1, 100)).all()
    assert (order != epoch_order(3, 2, 100)).any()
    assert (order != epoch_order(4, 1, 100)).any()


def test_the_order_never_changes_between_versions() -> None:
    assert epoch_order(7, 2, 8).tolist() == [7, 6, 4, 1, 5, 2, 0, 3]


def test_the_order_cannot_be_changed_by_a_caller() -> None:
    with pytest.raises(ValueError, match="read-only"):
        epoch_order(0, 0, 4)[0] = 1


def test_the_largest_seed_works() -> None:
    assert sorted(epoch_order(2**32 - 1, 0, 5)) == [0, 1, 2, 3, 4]


def test_parts_are_selected_in_different_orders() -> None:
    assert (selection_order(0, "a", 50) != selection_order(0, "b", 50)).any()


def test_steps_are_full_global_batches() -> None:
    training = Training(batch_size=4, gradient_accumulation_steps=2, epochs=3)
    assert steps_per_epoch(39, training) == 4
    assert total_steps(39, training) == 12


def test_max_steps_overrides_the_epochs() -> None:
    assert total_steps(40, Training(batch_size=4, epochs=1, max_steps=25)) == 25
    assert total_steps(40, Training(batch_size=4, epochs=9, max_steps=3)) == 3


def test_too_few_rows_for_a_step_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 rows do not fill one global batch of 4"):
        total_steps(3, Training(batch_size=4))


def test_an_epochs_steps_never_repeat_a_row_and_epochs_differ() -> None:
    training = Training(batch_size=4, epochs=2, seed=5)
    first = np.concatenate([step_rows(10, training, step) for step in (0, 1)])
    second = np.concatenate([step_rows(10, training, step) for step in (2, 3)])
    assert len(set(first.tolist())) == len(first) == 8
    assert first.tolist() == epoch_order(5, 0, 10)[:8].tolist()
    assert second.tolist() == epoch_order(5, 1, 10)[:8].tolist()


def test_micro_batches_keep_the_order() -> None:
    assert [part.tolist() for part in micro_batches(np.arange(6), 3)] == [[0], [1], [2, 3], [4, 5]]
    assert [part.tolist() for part in micro_batches(np.arange(6), 2)] == [[0], [1, 2], [3, 4, 5]]
    assert [part.tolist() for part in micro_batches(np.arange(2), 2)] == [[0], [1]]
    assert [part.tolist() for part in micro_batches(np.arange(6), 3, in_halves=False)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="6 rows cannot be cut into 4"):
        micro_batches(np.arange(6), 4)


@given(st.integers(1, 400), st.integers(1, 7), st.integers(0, 2**32 - 1), st.integers(0, 9))
def test_batches_by_length_have_each_row_once(n: int, size: int, seed: int, epoch: int) -> None:
    size = min(size, n)
    lengths = np.random.RandomState([seed, n]).randint(1, 30, n)
    order = epoch_order(seed, epoch, n)
    batches = grouped(order, lengths, size, seed, epoch)
    assert batches.shape == (n // size, size)
    assert sorted(batches.ravel()) == sorted(order[: n // size * size]), "those that an order without lengths has"
    assert (batches == grouped(order, lengths, size, seed, epoch)).all()


def test_batches_by_length_are_of_similar_length_and_in_no_order_of_it() -> None:
    n, size = 4000, 8
    lengths = np.random.RandomState(1).randint(1, 100, n)
    order = epoch_order(3, 0, n)
    batches = grouped(order, lengths, size, 3, 0)

    def padding(rows: np.ndarray) -> float:
        return float((lengths[rows].max(1, keepdims=True) - lengths[rows]).sum() / lengths[rows].sum())

    assert padding(batches) < 0.05 < 0.6 < padding(order.reshape(-1, size))
    longest = lengths[batches].max(1)
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.1
    # Another epoch has other batches, of other rows together.
    others = grouped(epoch_order(3, 1, n), lengths, size, 3, 1)
    assert {frozenset(batch) for batch in batches.tolist()}.isdisjoint(frozenset(batch) for batch in others.tolist())


def test_the_batches_stay_what_they_are() -> None:
    """A run may be gone on with by a later version."""
    lengths = np.array([3, 9, 4, 8, 1, 7, 2, 6, 5])
    assert grouped(epoch_order(7, 2, 9), lengths, 2, 7, 2).tolist() == [[6, 4], [8, 2], [5, 7], [1, 3]]
