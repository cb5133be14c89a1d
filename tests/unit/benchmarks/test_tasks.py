"""How training in one process is judged beside ``transformers.Trainer``."""

from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import tasks

    return tasks


def pair(tasks: ModuleType, ours: float, trainer: float) -> dict[str, object]:
    """Seconds a step of both, in one turn. With the settings the Trainer is faster than anybody, and no goal is about that."""
    return {
        tasks.OURS: tasks.Result(step=ours, first=9.0, peak_mb=800.0, checkpoint_mb=4.0),
        tasks.TRAINER: tasks.Result(step=trainer, first=7.0, peak_mb=900.0),
        tasks.TUNED: tasks.Result(step=0.5, first=7.0, peak_mb=900.0),
    }


def met(tasks: ModuleType, turns: list[tuple[float, float]], memory: float = 1000.0, checkpoint: float = 80.0) -> list[bool]:
    pairs = {work: [pair(tasks, *turn) for turn in turns] for work in (tasks.BERT, tasks.LLAMA)}
    full = tasks.Result(step=1.0, first=9.0, peak_mb=memory, checkpoint_mb=checkpoint)
    return [goal.met for goal in tasks.goals(pairs, [each[tasks.OURS] for each in pairs[tasks.LLAMA]], full)]


def test_as_fast_as_the_other_is_enough(tasks: ModuleType) -> None:
    assert met(tasks, [(1.0, 1.0)]) == [True] * 4
    assert met(tasks, [(1.001, 1.0)]) == [False, False, True, True]


def test_both_are_compared_within_a_turn(tasks: ModuleType) -> None:
    """A machine that gets slower makes both slower: medians of each alone would say that the other is ahead."""
    assert met(tasks, [(1.0, 1.1), (2.0, 2.2), (6.0, 5.0)])[:2] == [True, True]


def test_adapters_have_to_take_less(tasks: ModuleType) -> None:
    assert met(tasks, [(1.0, 1.0)], memory=800.0) == [True, True, False, True]
    assert met(tasks, [(1.0, 1.0)], checkpoint=79.0) == [True, True, True, False]
