"""Lines and scales of a report."""

import math
import random

import pytest

from lmj_operator.cli.report.scale import Scale, clock_ticks, from_zero, of_counts, of_parts, of_small, of_times
from lmj_operator.cli.report.series import LONGEST, SMOOTH, Record, losses, ordered, rates, replicas, smooth, step_times, thin


def test_thinning_keeps_ends_and_extremes() -> None:
    draw = random.Random(1)
    points = [(float(step), draw.random()) for step in range(1, 100_001)]
    points[41_234] = (points[41_234][0], 9.0)
    points[77_777] = (points[77_777][0], -9.0)
    thinned = thin(points)
    assert len(thinned) <= LONGEST
    assert len(thinned) > LONGEST * 0.9
    assert thinned == sorted(thinned)
    assert {points[0], points[-1], points[41_234], points[77_777]} <= set(thinned) <= set(points)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 9, 10, 11, 100])
@pytest.mark.parametrize("limit", [4, 5, 10])
def test_thinning_of_any_length(count: int, limit: int) -> None:
    points = [(float(step), math.sin(step)) for step in range(count)]
    thinned = thin(points, limit)
    assert len(thinned) <= limit
    assert set(thinned) <= set(points)
    if count <= limit:
        assert thinned == points
    else:
        assert (thinned[0], thinned[-1]) == (points[0], points[-1])
        for extreme in (min, max):
            assert extreme(value for _, value in thinned) == extreme(value for _, value in points)


def test_thinning_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4 points"):
        thin([], 3)


def test_the_last_record_of_a_step_counts() -> None:
    records = ordered([Record(1, 0.5, 1.0), Record(3, 0.3, 3.0), Record(2, 0.4, 2.0), Record(3, 0.2, 4.0)])
    assert [(r.step, r.loss) for r in records] == [(1, 0.5), (2, 0.4), (3, 0.2)]


def test_step_times_stand_at_the_later_step() -> None:
    records = [Record(1, 1.0, 10.0), Record(2, 1.0, 10.5), Record(3, 1.0, 10.5), Record(4, 1.0, 9.0), Record(5, 1.0, 12.0)]
    assert step_times(records) == [(2, 0.5), (5, 3.0)]
    assert step_times([Record(1, 1.0, math.nan), Record(2, 1.0, 3.0)]) == []


def test_losses_that_are_no_numbers_are_left_out() -> None:
    records = [Record(i, loss, 0.0) for i, loss in enumerate((1.0, math.nan, math.inf, 1e308, 2.0))]
    assert losses(records) == [(0, 1.0), (4, 2.0)]


def test_times_that_span_much_are_on_a_logarithmic_scale() -> None:
    assert not of_times([0.1, 5.0], 0, 100).logarithmic
    wide = of_times([0.1, 5.1], 100, 0)
    assert wide.logarithmic
    assert 0 < wide.at(5.1) < wide.at(1) < wide.at(0.1) < 100
    assert wide.ticks(5) == pytest.approx([0.1, 0.3, 1, 3])


@pytest.mark.parametrize("values", [[], [0.0], [1.0], [-2.0], [5e-324], [0.1, 0.7], [1e29, -1e29], [3, 17_000]])
def test_linear_scales_and_their_ticks(values: list[float]) -> None:
    scale = from_zero(values, 0, 100)
    ticks = scale.ticks(5)
    assert 1 <= len(ticks) <= 12
    assert all(scale.low <= tick <= scale.high or math.isclose(tick, scale.high, rel_tol=1e-6) for tick in ticks)
    assert all(0 <= scale.at(value) <= 100 for value in values)


def test_ticks_are_round() -> None:
    assert Scale(0, 0.73, 0, 1).ticks(5) == [0, 0.2, 0.4, 0.6]
    assert Scale(0, 1265, 0, 1).ticks(7) == [0, 200, 400, 600, 800, 1000, 1200]
    assert Scale(1e-9, 1e9, 0, 1, logarithmic=True).ticks(5)[0] == pytest.approx(1e-9)
    assert len(Scale(1e-9, 1e9, 0, 1, logarithmic=True).ticks(5)) <= 6


@pytest.mark.parametrize(("low", "high", "logarithmic"), [(1, 1, False), (2, 1, False), (0, 1, True)])
def test_scales_without_room_are_refused(low: float, high: float, logarithmic: bool) -> None:
    with pytest.raises(ValueError, match="scale"):
        Scale(low, high, 0, 1, logarithmic)


def test_a_smoothed_line_is_the_mean_of_what_lies_around() -> None:
    points = [(float(step), step % 2 * 2.0) for step in range(1, 1001)]
    smoothed = smooth(points)
    assert len(smoothed) == SMOOTH
    assert (smoothed[0][0], smoothed[-1][0]) == (1.0, 1000.0)
    assert all(abs(value - 1.0) <= 0.1 for _, value in smoothed)
    steep = [(float(step), 0.0 if step <= 500 else 1.0) for step in range(1, 1001)]
    # No lag: at the jump it is half of it.
    assert min(smooth(steep), key=lambda point: abs(point[0] - 500.5))[1] == pytest.approx(0.5, abs=0.1)
    assert smooth(steep)[100][1] == 0.0


def test_one_huge_loss_spoils_what_lies_around_it_and_no_more() -> None:
    points = [(float(step), 1e29 if step == 500 else 0.5) for step in range(1, 1001)]
    far = [value for step, value in smooth(points) if abs(step - 500) > 20]
    assert len(far) > 300
    assert set(far) == {0.5}


@pytest.mark.parametrize("count", [0, 1, 2, 199])
def test_few_steps_are_not_smoothed(count: int) -> None:
    assert smooth([(float(step), 1.0) for step in range(count)]) == []


def test_rates_are_those_that_are_told() -> None:
    told = [
        Record(1, 0.5, 1.0, 1e-5),
        Record(2, 0.5, 2.0),
        Record(3, 0.5, 3.0, -1.0),
        Record(4, 0.5, 4.0, math.inf),
        Record(5, 0.5, 5.0, 0.0),
    ]
    assert rates(told) == [(1, 1e-5), (5, 0.0)]


def test_parts_have_a_scale_to_one() -> None:
    for values, low in (([0.7044, 0.98], 0.6), ([0.95], 0.9), ([0.0, 1.0], 0.0), ([1.0], 0.9), ([], 0.0), ([-5.0, 7.0], 0.0)):
        scale = of_parts(values, 100, 0)
        assert (scale.low, scale.high) == (pytest.approx(low), 1.0)


def test_small_values_have_a_scale_from_zero() -> None:
    assert (of_small([1e-5, 2e-5], 100, 0).low, of_small([1e-5, 2e-5], 100, 0).high) == (0.0, pytest.approx(2.1e-5))
    assert of_small([0.0], 100, 0).high == 1.0
    assert of_small([], 100, 0).high == 1.0


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [(0.5, [0]), (471, [0, 120, 240, 360]), (50, [0, 15, 30, 45]), (86400 * 9, [0, 86400 * 3, 86400 * 6, 86400 * 9])],
)
def test_ticks_of_a_clock(seconds: float, ticks: list[int]) -> None:
    assert clock_ticks(seconds, 4) == ticks


def test_replicas_change_between_two_steps() -> None:
    told = [Record(step, 0.5, 1.0, replicas=count) for step, count in enumerate((2, 2, 2, 1, 1, 3), 1)]
    assert replicas(told) == [(1, 2), (4, 2), (4, 1), (6, 1), (6, 3)]
    assert replicas(told[:3]) == [(1, 2), (3, 2)]
    assert replicas([*told[:2], Record(3, 0.5, 1.0), told[3]]) == [(1, 2), (4, 2), (4, 1)]
    assert replicas([Record(1, 0.5, 1.0)]) == []


def test_counts_have_whole_ticks() -> None:
    for most, ticks in ((1, [0, 1]), (2, [0, 1, 2]), (8, [0, 2, 4, 6, 8])):
        assert of_counts([most], 0, 100).ticks(5) == ticks
    assert of_counts([], 0, 100).ticks(5) == [0, 1]
