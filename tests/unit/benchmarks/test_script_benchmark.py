"""What the benchmark of scripts takes for a new step, and for one that is done again."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark reads /proc", allow_module_level=True)

OLD, NEW, NEWER = 10, 20, 30
"""Process ids of the first process."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import script

    return script


def lines(script: ModuleType, *steps: tuple[int, float, int]) -> list[Any]:
    before = [(step, step / 10, OLD) for step in range(1, 51)]
    return [script.Line(step, time, pid, 2) for step, time, pid in (*before, *steps)]


def test_no_new_step_yet(script: ModuleType) -> None:
    assert script.judge(lines(script, (41, 6.0, NEW)), 5.02) is None


def test_steps_done_again_are_counted_and_are_not_new(script: ModuleType) -> None:
    again = [(step, 6 + (step - 41) / 10, NEW) for step in range(41, 53)]
    seconds, lost = script.judge(lines(script, *again), 5.02)
    assert seconds == pytest.approx(7.0 - 5.02)
    assert lost == 10


def test_a_step_that_the_survivor_ended_is_not_the_next(script: ModuleType) -> None:
    again = [(step, 6 + (step - 51) / 10, NEW) for step in (51, 52)]
    seconds, lost = script.judge(lines(script, (51, 5.03, OLD), *again), 5.02)
    assert seconds == pytest.approx(6.1 - 5.02)
    assert lost == 1


def test_a_start_that_ends_early_counts_as_no_other(script: ModuleType) -> None:
    """Who is left goes on alone, and is then joined by the other."""
    found = script.judge(lines(script, (51, 6.0, NEW), (51, 7.0, NEWER), (52, 7.1, NEWER)), 5.02)
    assert found == (pytest.approx(0.98), 0)


def test_both_take_part_in_what_is_a_goal(script: ModuleType) -> None:
    def trial(name: str, fault: str, seconds: float | None) -> Any:
        return script.Trial(name, fault, 0, seconds, 0)

    ours = [trial("ours", "processes", 1.0), trial("ours", "nodes", 5.5), trial("ours", "nodes", None)]
    goals = script.judged(ours, [trial("theirs", "processes", 5.0)], [(1.0, 1.0)])
    assert [goal.met for goal in goals] == [True, False, False, True]
    assert goals[1].measured > script.NEVER_SECONDS / 2


def test_what_memory_is_for_is_a_goal(script: ModuleType) -> None:
    def judged(seconds: float, lost: int) -> list[bool]:
        ours = [script.Trial("ours", "memory", 0, seconds, again) for again in (0, lost)]
        theirs = [script.Trial("theirs", "processes", 0, 8.0, 9)]
        return [goal.met for goal in script.judged(ours, theirs, [])]

    assert judged(1.0, 1) == [True, True, True]
    assert judged(1.1, 1) == [False, True, True]
    assert judged(1.0, 2) == [True, False, True]
