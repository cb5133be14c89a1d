"""What the benchmark of moves takes for a pause."""

from pathlib import Path
from types import ModuleType

import pytest

BEFORE = [(step, step / 10) for step in range(1, 51)]
"""A step each tenth of a second; the 50th ended at 5.0."""


@pytest.fixture
def migration(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import migration

    return migration


def after(migration: ModuleType, first: int, begin: float) -> list[tuple[int, float]]:
    return [(first + number, begin + number / 10) for number in range(migration.AFTER + 1)]


def test_a_move_that_is_not_over(migration: ModuleType) -> None:
    assert migration.judge(BEFORE, 5.05, 55) is None
    assert migration.judge([*BEFORE, (51, 5.1), (52, 5.2)], 5.05, 55) is None


def test_the_pause_is_at_the_switch_and_the_longest_gap_anywhere(migration: ModuleType) -> None:
    slow = [(51, 5.5), *((step, 5.5 + (step - 51) / 10) for step in range(52, 61))]
    seen = [*BEFORE, *slow, *after(migration, 61, 6.54)]
    pause, longest, total, rate, usual, again = migration.judge(seen, 5.05, 60)
    assert pause == pytest.approx(0.04)
    assert longest == pytest.approx(0.4)
    assert total == pytest.approx(6.54 - 5.05)
    assert usual == pytest.approx(0.1)
    assert rate == pytest.approx(11 / (6.54 - 5.05) * 0.1)
    assert again == 0


def test_a_group_that_starts_anew_pauses_until_the_next_new_step(migration: ModuleType) -> None:
    again = [(step, 9 + step / 100) for step in range(41, 51)]
    seen = [*BEFORE, *again, *after(migration, 51, 10.0)]
    pause, longest, total, _, _, count = migration.judge(seen, 5.05, None)
    assert (pause, longest) == (pytest.approx(4.9), pytest.approx(4.9))
    assert total == pytest.approx(10 - 5.05)
    assert count == 10


def test_the_unrest_before_a_move(migration: ModuleType) -> None:
    assert migration.unrest(BEFORE, 5.05) == pytest.approx(0.0, abs=1e-9)
    jumpy = [(step, at + (0.03 if step % 2 else 0.0)) for step, at in BEFORE]
    assert migration.unrest(jumpy, 5.05) == pytest.approx(0.06)


def test_goals_are_of_the_largest_model(migration: ModuleType) -> None:
    def move(way: str, size: str, pause: float) -> object:
        return migration.Move(way, size, 1, pause, pause, 5.0, 0.9, 0, 0.1, 0.01)

    done = {
        (migration.LIVE, "1x"): [move(migration.LIVE, "1x", 0.040)],
        (migration.LIVE, "4x"): [move(migration.LIVE, "4x", 0.060)],
        (migration.RESTART, "1x"): [move(migration.RESTART, "1x", 4.0)],
    }
    goals = migration.judged(done)
    assert [(g.measured, g.met) for g in goals] == [
        (0, True),
        (pytest.approx(60), False),
        (pytest.approx(100), True),
        (pytest.approx(1.5), False),
    ]
