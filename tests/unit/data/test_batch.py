import numpy as np
import pytest

from lmj_trainer.data.batch import collate
from lmj_trainer.data.split import Split
from lmj_trainer.task.sequence_classification.task import SequenceClassification

TASK = SequenceClassification()


def split(lengths: list[int], max_length: int = 32, types: bool = False) -> Split:
    tokens = sum(lengths)
    return Split(
        np.arange(1, tokens + 1, dtype=np.int32),
        np.ones(tokens, np.uint8) if types else None,
        np.cumsum([0, *lengths]),
        np.arange(len(lengths), dtype=np.int64),
        max_length,
    )


def test_rows_are_padded_to_a_multiple_of_8_with_a_mask() -> None:
    batch = collate(split([3, 9, 2]), np.array([2, 0]), 99, TASK.targets)
    assert batch.input_ids.tolist() == [[13, 14, *[99] * 6], [1, 2, 3, *[99] * 5]]
    assert batch.attention_mask.tolist() == [[1, 1, *[0] * 6], [1, 1, 1, *[0] * 5]]
    assert batch.token_type_ids is None
    assert batch.labels.tolist() == [2, 0]
    assert {array.dtype for array in (batch.input_ids, batch.attention_mask, batch.labels)} == {np.dtype(np.int64)}


def test_the_width_follows_the_longest_row_of_the_batch_alone() -> None:
    assert collate(split([3, 9]), np.array([1]), 0, TASK.targets).input_ids.shape == (1, 16)


def test_the_width_never_exceeds_the_longest_length() -> None:
    assert collate(split([17, 20], max_length=20), np.array([0]), 0, TASK.targets).input_ids.shape == (1, 20)


def test_token_types_are_padded_with_0() -> None:
    types = collate(split([2, 3], types=True), np.array([0, 1]), 0, TASK.targets).token_type_ids
    assert types is not None
    assert types.tolist() == [[1, 1, *[0] * 6], [1, 1, 1, *[0] * 5]]


def test_a_split_whose_arrays_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="arrays that do not fit"):
        Split(np.zeros(3, np.int32), None, np.array([0, 2]), np.zeros(1, np.int64), 8)


def test_a_row_that_is_not_there_is_an_error() -> None:
    with pytest.raises(IndexError, match="row 2"):
        split([1, 1]).row(2)
