"""What the benchmark of moves takes for a pause, and for goodput."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BEFORE = [(step, step / 10) for step in range(1, 51)]
"""A step each tenth of a second; the 50th ended at 5.0."""


@pytest.fixture
def migration(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import migration

    return migration


@pytest.fixture
def move(migration: ModuleType) -> ModuleType:
    import move

    return move


@pytest.fixture
def goodput(migration: ModuleType) -> ModuleType:
    import goodput

    return goodput


def after(move: ModuleType, first: int, begin: float) -> list[tuple[int, float]]:
    return [(first + number, begin + number / 10) for number in range(move.AFTER + 1)]


def test_a_move_that_is_not_over(move: ModuleType) -> None:
    assert move.judge(BEFORE, 5.05, 55) is None
    assert move.judge([*BEFORE, (51, 5.1), (52, 5.2)], 5.05, 55) is None


def test_the_pause_is_at_the_switch_and_the_longest_gap_anywhere(move: ModuleType) -> None:
    slow = [(51, 5.5), *((step, 5.5 + (step - 51) / 10) for step in range(52, 61))]
    seen = [*BEFORE, *slow, *after(move, 61, 6.54)]
    cost = move.judge(seen, 5.05, 60)
    assert cost.pause == pytest.approx(0.04)
    assert cost.longest == pytest.approx(0.4)
    assert cost.total == pytest.approx(6.54 - 5.05)
    assert cost.step == pytest.approx(0.1)
    assert cost.rate == pytest.approx(11 / (6.54 - 5.05) * 0.1)
    assert cost.again == 0
    assert move.around(seen, 60) == pytest.approx([0.1, 0.1, 0.14, 0.1, 0.1])


def test_a_group_that_starts_anew_pauses_until_the_next_new_step(move: ModuleType) -> None:
    again = [(step, 9 + step / 100) for step in range(41, 51)]
    seen = [*BEFORE, *again, *after(move, 51, 10.0)]
    cost = move.judge(seen, 5.05, None)
    assert (cost.pause, cost.longest) == (pytest.approx(4.9), pytest.approx(4.9))
    assert cost.total == pytest.approx(10 - 5.05)
    assert cost.again == 10


def test_gaps_before_the_switch_count_where_they_are_to(move: ModuleType) -> None:
    seen = [*BEFORE, (51, 5.1), (52, 5.9), (53, 6.0), *after(move, 54, 6.15)]
    assert move.judge(seen, 5.05, 53).pause == pytest.approx(0.05)
    assert move.judge(seen, 5.05, 53, near=2).pause == pytest.approx(0.7)


def test_the_unrest_before_a_move(move: ModuleType) -> None:
    assert move.unrest(BEFORE, 5.05) == pytest.approx(0.0, abs=1e-9)
    assert move.unrest([(step, at - (step < 48)) for step, at in BEFORE], 5.05) == pytest.approx(1.0)
    assert move.unrest([(1, 1.0), (2, 2.0), (3, 3.5)], 4.0) == pytest.approx(0.25)


def test_what_a_hand_over_sent(migration: ModuleType, tmp_path: Path) -> None:
    import ways

    log = tmp_path / "pod.log"
    assert ways.sent(log) is None
    log.write_text("a line\n2026 INFO x: handed over: sent 3000000 bytes of state and 500000 of gradients\nanother\n")
    assert ways.sent(log) == pytest.approx(3.5)


def test_how_long_nobody_did_anything_for_a_step(migration: ModuleType, tmp_path: Path) -> None:
    import ways

    def line(at: str, view: int, step: int, update: float) -> str:
        return f"2026-11-21 10:00:{at} INFO lmj_trainer.worker.trainer: view {view} trains from step {step} on; its update took {update} s\n"

    committed = datetime.strptime("2026-11-21 10:00:07", "%Y-%m-%d %H:%M:%S").timestamp()
    assert ways.waited(tmp_path, 19, committed) is None
    (tmp_path / "r0-1.log").write_text(f"a line\n{line('01,000', 1, 0, 0.0)}{line('07,350', 2, 19, 0.3)}")
    (tmp_path / "r1-2.log").write_text(f"{line('07,180', 2, 19, 0.1)}{line('09,000', 3, 30, 0.1)}")
    assert ways.waited(tmp_path, 19, committed) == pytest.approx(0.08, abs=1e-3)


def test_goodput_is_what_moves_leave_of_the_time(goodput: ModuleType) -> None:
    # Ten steps a second; nothing from 60 to 61.
    seen = [(step, step / 10 + (step > 600)) for step in range(1, 1300)]
    assert goodput.progress(seen, 5.05) == pytest.approx(50.5)
    assert goodput.progress(seen, 60.55) == pytest.approx(600.5)
    moved, quiet = goodput.loss(seen, 55.0, 75.0, 20.0), goodput.loss(seen, 85.0, 105.0, 20.0)
    assert (moved.steps, moved.usual, moved.lost) == (pytest.approx(190), pytest.approx(10), pytest.approx(1))
    assert quiet.lost == pytest.approx(0)
    assert goodput.goodput([quiet, moved, moved], 20.0) == pytest.approx(0.95)
    with pytest.raises(ValueError, match="not between"):
        goodput.progress(seen, 1e6)


def test_goals(migration: ModuleType, move: ModuleType) -> None:
    def moves(way: str, size: str, stages: int, pause: float) -> tuple[tuple[str, str, int], list[Any]]:
        cost = {"pause": pause, "longest": pause, "total": 5.0, "rate": 0.9, "again": 0, "step": 0.1, "unrest": 0.01}
        return (way, size, stages), [move.Move(way, size, stages, 0, **cost)]

    done = dict(
        [
            moves(move.LIVE, "1x", 1, 0.040),
            moves(move.LIVE, "4x", 1, 0.060),
            moves(move.LIVE, "BERT-base", 1, 0.060),
            moves(move.LIVE, "BERT-base", 2, 0.1),
            moves(move.RESTART, "BERT-base", 2, 4.0),
            moves(move.GROUP, "BERT-base", 2, 1.0),
        ]
    )
    goals = migration.judged(done, {1: 0.995, 2: 0.9})
    assert [(g.measured, g.met) for g in goals] == [
        (0, True),
        (pytest.approx(60), False),
        (pytest.approx(1.5), False),
        (pytest.approx(40), True),
        (pytest.approx(10), False),
        (pytest.approx(99.5), True),
    ]
    assert migration.judged({}, {1: 0.98})[0].met is False
    # A pause that is shorter than what steps differ by is not seen.
    short = dict([moves(move.LIVE, "BERT-base", 2, -0.2), moves(move.RESTART, "BERT-base", 2, 0.15)])
    assert migration.judged(short, {})[-1].measured == pytest.approx(15)
    assert "live move, BERT-base" in move.table(done.values())
    # What was waited is what counts where it is known.
    (known,) = done[move.LIVE, "BERT-base", 1]
    done[move.LIVE, "BERT-base", 1] = [replace(known, waited=0.045)]
    assert (migration.judged(done, {})[1].measured, migration.judged(done, {})[1].met) == (pytest.approx(45), True)
    assert "waited 45 ms" in str(done[move.LIVE, "BERT-base", 1][0])
