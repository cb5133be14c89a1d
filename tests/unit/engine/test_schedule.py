"""The order of work, as data and as drawings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmj_trainer.strategy.pipeline.schedule import Op, Work, draw, first_cut, order, window


def text(stage: int, stages: int, micro_batches: int) -> str:
    return " ".join(f"{op.work.value}{op.micro_batch}" for op in order(stage, stages, micro_batches))


def unit(stage: int, work: Work) -> int:
    """All work costs 1; the first stage has no input to cut its backward by: B 2, W 0."""
    if stage == 0:
        return {Work.FORWARD: 1, Work.BACKWARD: 2, Work.WEIGHTS: 0}[work]
    return 1


@pytest.mark.parametrize(
    ("stage", "stages", "micro_batches", "expected"),
    [
        (0, 1, 3, "F0 B0 F1 B1 F2 B2"),
        (0, 2, 4, "F0 F1 F2 B0 F3 B1 B2 B3"),
        (1, 2, 4, "F0 B0 F1 B1 F2 B2 F3 B3"),
        (0, 3, 6, "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5"),
        (1, 3, 6, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"),
        (0, 3, 2, "F0 F1 B0 B1"),
        (2, 3, 1, "F0 B0"),
    ],
)
def test_order(stage: int, stages: int, micro_batches: int, expected: str) -> None:
    assert text(stage, stages, micro_batches) == expected


def test_drawing_of_two_stages() -> None:
    """From its first forward on the last stage is never idle. Its last two backwards are cut: weight gradients fill its end."""
    assert draw(2, 4, unit) == [
        "FFF.BBFBBBBBB",
        ".FBWFBWFBFBWW",
    ]


def test_drawing_of_three_stages() -> None:
    assert draw(3, 6, unit) == [
        "FFFFF..BBFBBBBBBBBBB",
        ".FFF.BWFBWFBFBBWBWWW",
        "..FBWFBWFBFBFBFBWWWW",
    ]


def test_drawing_of_fewer_micro_batches_than_stages() -> None:
    assert draw(3, 2, unit) == [
        "FF...BBBB",
        ".FF.BWBW.",
        "..FBFBWW.",
    ]


def test_a_single_stage_does_forward_and_backward_in_turn() -> None:
    assert draw(1, 3, unit) == ["FBBFBBFBB"]


@given(st.data(), st.integers(1, 8), st.integers(1, 24))
def test_every_piece_once_in_order_and_never_more_than_the_window_in_flight(data, stages: int, micro_batches: int) -> None:
    stage = data.draw(st.integers(0, stages - 1))
    ops = list(order(stage, stages, micro_batches))
    for work in (Work.FORWARD, Work.BACKWARD):
        assert [op.micro_batch for op in ops if op.work is work] == list(range(micro_batches))
    flying = 0
    for op in ops:
        flying += 1 if op.work is Work.FORWARD else -1
        assert 0 <= flying <= window(stage, stages)
    assert flying == 0
    assert all(ops.index(Op(Work.FORWARD, i)) < ops.index(Op(Work.BACKWARD, i)) for i in range(micro_batches))


@given(st.integers(1, 6), st.integers(1, 16), st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)))
def test_it_ends_and_does_all_work_whatever_work_costs(stages: int, micro_batches: int, costs: tuple[int, int, int]) -> None:
    forward, backward, weights = costs

    def cost(stage: int, work: Work) -> int:
        if stage == 0:
            return {Work.FORWARD: forward, Work.BACKWARD: backward + weights, Work.WEIGHTS: 0}[work]
        return {Work.FORWARD: forward, Work.BACKWARD: backward, Work.WEIGHTS: weights}[work]

    lines = draw(stages, micro_batches, cost)
    assert len({len(line) for line in lines}) == 1
    for stage, line in enumerate(lines):
        assert {w: line.count(w) for w in "FBW"} == {w.value: micro_batches * cost(stage, w) for w in Work}


@given(st.integers(1, 8), st.integers(1, 24))
def test_the_bubble_is_the_way_to_the_last_stage_and_back(stages: int, micro_batches: int) -> None:
    """However many micro-batches there are."""
    for line in draw(stages, micro_batches, unit):
        assert line.count(".") <= 2 * (stages - 1)


@pytest.mark.parametrize(("stages", "micro_batches", "first"), [(1, 3, 3), (2, 8, 6), (3, 8, 4), (3, 4, 0), (3, 2, 0)])
def test_the_last_backwards_are_cut_two_for_each_other_stage(stages: int, micro_batches: int, first: int) -> None:
    assert first_cut(stages, micro_batches) == first


@given(st.integers(1, 6), st.integers(1, 24))
def test_few_weight_gradients_wait(stages: int, micro_batches: int) -> None:
    """Each keeps a micro-batch's activations in memory."""
    cut = first_cut(stages, micro_batches)
    assert 0 <= cut <= micro_batches
    for line in draw(stages, micro_batches, unit)[1:]:
        waiting = most = 0
        for work in line:
            waiting += {"B": 1, "W": -1}.get(work, 0)
            most = max(most, waiting)
        # One that is not cut waits too while its first half is drawn.
        assert most <= max(1, 2 * (stages - 1))
