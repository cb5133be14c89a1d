"""What scripts say of their progress, read."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmj_api.bounds import LARGEST
from lmj_api.protocol import Progress
from lmj_trainer.launch.progress import MOST_LINE, RateLimit, ReportError, Reports


def said(*reports: dict[str, Any], first_step: int = 0) -> Progress:
    """After the reports, one a second."""
    reports_of = Reports(first_step)
    for second, report in enumerate(reports):
        reports_of.take_lines(json.dumps(report).encode(), float(second))
    assert reports_of.progress is not None
    return reports_of.progress


def posted(*statuses: tuple[float, int | None, dict[str, Any]], first_step: int = 0) -> Progress:
    """After the Trainer's posts: time, percent and metrics of each."""
    reports = Reports(first_step)
    for at, percent, metrics in statuses:
        status: dict[str, Any] = {"lastUpdatedTime": "2026-01-01T00:00:00+00:00", "estimatedRemainingSeconds": 7}
        status |= {"progressPercentage": percent} if percent is not None else {}
        status["metrics"] = [{"name": name, "value": str(value)} for name, value in metrics.items()]
        reports.take_trainer_status(json.dumps({"trainerStatus": status}).encode(), at)
    assert reports.progress is not None
    return reports.progress


def test_a_report_by_the_names_that_people_use() -> None:
    expected = Progress(
        step=3, steps=10, epoch=0.5, loss=1.5, learning_rate=0.01, grad_norm=2.0, samples_per_second=8.0, eta_seconds=70.0
    )
    ours = {
        "step": 3,
        "steps": 10,
        "epoch": 0.5,
        "loss": 1.5,
        "learning_rate": 0.01,
        "grad_norm": 2,
        "samples_per_second": 8,
        "eta_seconds": 70,
    }
    assert said(ours) == expected
    theirs = {"global_step": 3, "max_steps": 10, "epoch": "0.5", "train_loss": 1.5, "lr": 1e-2, "gradient_norm": 2.0}
    assert said(theirs | {"train_samples_per_second": 8, "eta": 70}) == expected


def test_a_report_need_not_repeat_what_was_said() -> None:
    at = said({"step": 1, "steps": 10, "loss": 2.0}, {"step": 2}, {"learning_rate": 0.1})
    assert (at.step, at.steps, at.loss, at.learning_rate) == (2, 10, 2.0, 0.1)


def test_a_smaller_step_starts_anew_and_keeps_the_number_of_steps() -> None:
    at = said({"step": 8, "steps": 10, "loss": 2.0, "epoch": 3}, {"step": 4})
    assert at == Progress(step=4, steps=10, epoch=0.0)


def test_without_the_number_of_steps_the_newest_is_the_last_one_known() -> None:
    assert (said({"step": 0}).steps, said({"step": 5}).steps, said({"step": 11, "steps": 10}).steps) == (1, 5, 11)


def test_a_report_without_a_step_keeps_the_one_that_the_script_goes_on_from() -> None:
    assert said({"loss": 1.0}, first_step=7).step == 7


def test_the_time_that_is_left_is_measured_unless_the_script_says_it() -> None:
    assert said({"step": 10, "steps": 100}).eta_seconds is None
    assert said({"step": 10, "steps": 100}, {"step": 20}).eta_seconds == 8.0
    assert said({"step": 10, "steps": 100}, {"step": 20, "eta": 5}).eta_seconds == 5.0
    assert said({"step": 10, "steps": 100}, {"step": 0}, {"step": 50}).eta_seconds == 1.0


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), "much", None, True, [1], {"a": 1}, 10**400, "9" * 50])
def test_a_loss_that_is_no_number_is_unknown(loss: Any) -> None:
    assert said({"step": 1, "loss": 0.5}, {"step": 2, "loss": loss}).loss is None


@pytest.mark.parametrize("step", [-1, 1.5, float("nan"), "x", None, True, [], LARGEST * 2, 10**400])
def test_a_step_that_counts_nothing_is_refused(step: Any) -> None:
    reports = Reports()
    with pytest.raises(ReportError, match=r"^step: a whole number from 0 on is wanted"):
        reports.take({"step": step, "loss": 1.0}, 0.0)
    assert reports.progress is None


@pytest.mark.parametrize("field", ["steps", "epoch", "eta_seconds"])
@pytest.mark.parametrize("value", [-1, float("nan"), "x", None, 1e300, []])
def test_what_else_is_out_of_bounds_is_unknown(field: str, value: Any) -> None:
    assert said({"step": 3, field: value}) == Progress(step=3, steps=3, epoch=0.0)


def test_several_reports_at_once() -> None:
    for text in (
        b'{"step": 1, "steps": 9}\n\n{"step": 2}\r\n',
        b' {"step": 1, "steps": 9}  {"step": 2} ',
        b'{"step": 1, "steps": 9}{"step": 2}',
    ):
        reports = Reports()
        reports.take_lines(text, 0.0)
        assert reports.progress == Progress(step=2, steps=9, epoch=0.0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n \n",
        b"step 3",
        b"3",
        b"[]",
        b'{"step": 3',
        b"\xff",
        b"[" * 16_000,
        b'{"a":' * 3_000,
        b'{"text": 1}',
        b"{}",
        b" " * (MOST_LINE + 1),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(text: bytes) -> None:
    with pytest.raises(ReportError) as error:
        Reports().take_lines(text, 0.0)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
REPORT = st.dictionaries(
    st.sampled_from(["step", "max_steps", "steps", "loss", "lr", "epoch", "eta", "grad_norm", "other"]), JSON
)
METRIC = st.fixed_dictionaries(
    {"name": st.sampled_from(["current_step", "total_steps", "loss", "epoch", "current_epoch"]), "value": JSON}
)
STATUS = st.fixed_dictionaries(
    {}, optional={"progressPercentage": JSON, "estimatedRemainingSeconds": JSON, "metrics": JSON | st.lists(METRIC)}
)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), JSON | REPORT | STATUS), max_size=5))
def test_whatever_is_reported_the_progress_is_valid(reports: list[tuple[bool, Any]]) -> None:
    taken = Reports()
    for second, (trainer, report) in enumerate(reports):
        try:
            if trainer:
                taken.take_trainer_status(json.dumps({"trainerStatus": report}).encode(), second / 2)
            else:
                taken.take_lines(json.dumps(report).encode(), second / 2)
        except ReportError:
            pass
        if taken.progress is not None:
            assert Progress.model_validate_json(taken.progress.to_json()) == taken.progress


def test_the_trainer_begins_steps_and_ends() -> None:
    begin = (0.0, 0, {"total_steps": 200})
    assert posted(begin) == Progress(step=0, steps=200, epoch=0.0, eta_seconds=7.0)
    logged = {"loss": 0.5, "learning_rate": 1e-4, "grad_norm": 1.25, "epoch": 0.4}
    step = (5.0, 25, logged | {"current_step": 50, "total_steps": 200, "current_epoch": 0.5})
    known = {"loss": 0.5, "learning_rate": 1e-4, "grad_norm": 1.25}
    assert posted(begin, step) == Progress(step=50, steps=200, epoch=0.4, eta_seconds=7.0, **known)
    end = (9.0, 100, {"train_loss": 0.75, "train_runtime": 9.0, "train_steps_per_second": 22.222} | logged | {"epoch": 2.0})
    at = posted(begin, step, end)
    assert (at.step, at.epoch, at.loss, at.eta_seconds) == (200, 2.0, 0.5, 0.0)


def test_the_trainers_guess_of_the_time_left_gives_way_to_what_is_measured() -> None:
    at = posted((0.0, 0, {"total_steps": 900}), *((float(t), 50, {"current_step": 450 + t, "total_steps": 900}) for t in (5, 10)))
    assert at.eta_seconds == 440.0


def test_a_trainer_that_was_stopped_early_is_at_its_newest_step() -> None:
    begin, end = (0.0, 0, {"total_steps": 200}), (7.0, 100, {"epoch": 0.7, "train_runtime": 7.0, "train_steps_per_second": 10.0})
    step = (5.0, 25, {"current_step": 50, "total_steps": 200, "current_epoch": 0.5})
    assert posted(begin, step, end).step == 50
    assert posted(begin, end).step == 70
    assert posted(begin, end, first_step=100).step == 170
    assert posted(begin, (7.0, 100, {})).step == 200


def test_a_long_training_is_at_its_end_though_its_epochs_are_rounded() -> None:
    total = 1_000_000
    step = (5.0, 1, {"current_step": 4_996, "total_steps": total, "current_epoch": round(4_996 / total * 3, 2)})
    assert posted((0.0, 0, {"total_steps": total}), step, (9.0, 100, {"epoch": 3.0})).step == total


def test_a_second_training_of_one_script_begins_at_0() -> None:
    step = (5.0, 25, {"current_step": 50, "total_steps": 200, "current_epoch": 0.5, "loss": 1.0})
    first = (0.0, 0, {"total_steps": 200})
    assert posted(first, first_step=40).step == 40
    assert posted(first, step, (9.0, 0, {"total_steps": 30}), first_step=40) == Progress(
        step=0, steps=30, epoch=0.0, eta_seconds=7.0
    )


def test_a_metric_of_the_users_named_step_is_not_the_trainers_step() -> None:
    at = posted((5.0, 25, {"step": 9_999, "max_steps": 3, "current_step": 50, "total_steps": 200}))
    assert (at.step, at.steps) == (50, 200)


def test_percent_alone_is_shown_as_a_hundred_steps() -> None:
    assert posted((0.0, 0, {}), (5.0, 37, {})) == Progress(step=37, steps=100, epoch=0.0, eta_seconds=7.0)
    assert posted((0.0, 0, {}), (5.0, 37, {}), (6.0, 100, {})).step == 100


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"[" * 60_000, b'{"trainerStatus": 1}', b'{"trainerStatus": {}}', b"\xff"])
def test_what_is_no_status_is_refused(body: bytes) -> None:
    with pytest.raises(ReportError):
        Reports().take_trainer_status(body, 0.0)


def progress(step: int) -> Progress:
    return Progress(step=step, steps=100, epoch=0.0)


def test_the_newest_waits_its_turn() -> None:
    limit = RateLimit(0.5)
    assert limit.due_in(10.0) is None
    assert limit.take(10.0) is None
    limit.offer(progress(1))
    assert limit.due_in(10.0) == 0.0
    assert limit.take(10.0) == progress(1)
    limit.offer(progress(2))
    limit.offer(progress(3))
    assert limit.due_in(10.125) == 0.375
    assert limit.take(10.5) == progress(3)
    limit.offer(progress(3))
    assert limit.due_in(20.0) is None
