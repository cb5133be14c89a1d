import json

import pytest
from pydantic import ValidationError

from lmj_api.protocol import Evaluation, Event, EventKind, Progress
from lmj_api.status import JobStatus
from lmj_trainer.metrics import count, evaluate_counts


def test_two_labels_have_the_f1_of_the_second() -> None:
    result = evaluate_counts([[5, 1], [2, 4]], 6.0, ["no", "yes"], "test", 7)
    assert (result.samples, result.loss, result.accuracy, result.step) == (12, 0.5, 0.75, 7)
    assert result.f1 == pytest.approx(8 / 11)


def test_more_labels_have_the_mean_f1_and_absent_ones_count_as_0() -> None:
    result = evaluate_counts([[2, 0, 0], [0, 2, 0], [0, 0, 0]], 1.0, ["a", "b", "c"], "validation", 0)
    assert result.f1 == pytest.approx(2 / 3)


@pytest.mark.parametrize("loss_sum", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_gets_through_every_file_as_none(loss_sum: float) -> None:
    result = evaluate_counts([[3, 1], [0, 0]], loss_sum, ["a", "b"], "test", 1)
    assert (result.loss, result.loss_text, result.accuracy) == (None, "not a number", 0.75)
    assert "NaN" not in result.to_json()
    event = Event(time=1.0, kind=EventKind.EVALUATED, evaluation=result)
    assert Event.model_validate_json(event.to_json()) == event
    status = JobStatus(evaluations=[result])
    assert JobStatus.model_validate_json(status.to_json()) == status
    stored = status.model_dump(mode="json", by_alias=True, exclude_none=True)  # as an API server has it
    assert JobStatus.model_validate_json(json.dumps(stored, allow_nan=False)) == status
    old = {**result.model_dump(by_alias=True), "loss": loss_sum}
    assert Evaluation.model_validate(json.loads(json.dumps(old))) == result, "files of older versions have such numbers"


def test_no_message_has_a_number_that_json_has_not() -> None:
    with pytest.raises(ValidationError, match="finite number"):
        Progress(step=1, steps=2, epoch=float("nan"))


def test_counts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="not 2 by 2"):
        evaluate_counts([[1]], 0.0, ["a", "b"], "test", 0)
    with pytest.raises(ValueError, match="no row of test"):
        evaluate_counts([[0, 0], [0, 0]], 0.0, ["a", "b"], "test", 0)


def test_counting() -> None:
    confusion = [[0, 0], [0, 0]]
    count(confusion, [0, 1, 1], [1, 1, 0])
    assert confusion == [[0, 1], [1, 1]]
