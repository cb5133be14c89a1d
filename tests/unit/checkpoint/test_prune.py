"""What goes and what stays."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.on_disk import remove

from lmj_api.names import checkpoint_name
from lmj_api.protocol import CheckpointInfo
from lmj_api.run import Run
from lmj_trainer.checkpoint.prune import surplus


def info(step: int, *, best: bool = False, problem: str | None = None) -> CheckpointInfo:
    return CheckpointInfo(name=checkpoint_name(step), step=step, best=best, problem=problem)


@pytest.mark.parametrize(
    ("checkpoints", "keep", "gone"),
    [
        ([], 1, []),
        ([info(1)], 1, []),
        ([info(3), info(2), info(1)], 1, [1, 2]),
        ([info(1), info(3), info(2)], 2, [1]),
        ([info(3), info(2), info(1, best=True)], 1, [2]),
        ([info(3, best=True), info(2), info(1)], 1, [1, 2]),
        ([info(4), info(3), info(2, best=True), info(1, best=True)], 1, [1, 3]),
        ([info(3, problem="torn"), info(2), info(1)], 1, [1]),
        ([info(3), info(2), info(1, problem="torn")], 1, [2]),
        ([info(4, best=True, problem="torn"), info(3), info(2, best=True), info(1)], 1, [1]),
    ],
)
def test_surplus(checkpoints: list[CheckpointInfo], keep: int, gone: list[int]) -> None:
    assert surplus(checkpoints, keep) == [checkpoint_name(step) for step in gone]


@pytest.mark.parametrize(
    ("steps", "keep", "every", "gone"),
    [
        (range(10, 70, 10), 1, 20, [10, 30, 50]),
        (range(10, 70, 10), 1, 10, []),
        ([3, 11, 19, 23, 39, 41], 1, 10, [3, 19]),  # the first of each span of steps, wherever it is
        ([3, 11, 19, 23, 39, 41], 2, 20, [3, 11, 19]),
        ([10, 20], 1, 100, [10]),
    ],
)
def test_milestones_stay(steps: Iterable[int], keep: int, every: int, gone: list[int]) -> None:
    found = [info(step) for step in steps]
    assert surplus(found, keep, every=every) == [checkpoint_name(step) for step in gone]
    # One after the other comes to the same.
    there: list[CheckpointInfo] = []
    for each in found:
        there.append(each)
        went = surplus(there, keep, every=every)
        there = [c for c in there if c.name not in went]
    assert [c.step for c in there] == [step for step in steps if step not in gone]


def test_what_an_earlier_run_left_goes_when_there_are_enough_of_this_ones() -> None:
    a, b = (Run(id=f"{digit * 8}-0000-4000-8000-000000000000") for digit in "ab")

    def of(run: Run, step: int, view: int, *, best: bool = False) -> CheckpointInfo:
        return CheckpointInfo(name=checkpoint_name(step, view, run), step=step, best=best)

    earlier = [of(a, 10, 1, best=True), of(a, 20, 7), of(a, 30, 7)]
    mine = [of(b, 40, 1), of(b, 50, 2)]
    assert surplus(earlier, 2, b) == []
    assert surplus([*earlier, mine[0]], 2, b) == [earlier[1].name]
    assert surplus([*earlier, *mine], 2, b) == [earlier[1].name, earlier[2].name]
    # Its views are counted from 1 again, so of one step its own is the newer.
    again = of(b, 30, 1)
    assert surplus([*earlier, again], 2, b) == [earlier[2].name]
    # Another job's neither goes nor counts.
    assert surplus([*earlier, *mine], 1, b, [earlier[1].name, earlier[2].name, mine[1].name]) == []


def test_one_must_stay() -> None:
    with pytest.raises(ValueError, match="at least one"):
        surplus([info(1)], 0)


@pytest.mark.parametrize("name", ["..", "../x", "/tmp", "step-1", "step-000000001/..", "", "step-000000001\n"])
def test_only_checkpoints_are_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / checkpoint_name(2)).mkdir()
    with pytest.raises(ValueError, match="not the name of a checkpoint"):
        remove(tmp_path, [checkpoint_name(2), name])
    assert (tmp_path / checkpoint_name(2)).exists()


def test_what_is_gone_is_gone(tmp_path: Path) -> None:
    remove(tmp_path, [checkpoint_name(1)])
