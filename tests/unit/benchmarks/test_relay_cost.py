"""How the cost of encryption is judged."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def relay_cost(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import relay_cost

    return relay_cost


def moved(total: float, waited: float | None = 0.02, pause: float = 0.3, again: int = 0) -> Any:
    from move import LIVE, Move

    return Move(LIVE, "BERT-base", 1, 0, pause, pause, total, 0.9, again, 1.0, 0.1, waited=waited)


def measured(relay_cost: ModuleType, **found: list[dict[str, Any]]) -> dict[str, tuple[Any, bool]]:
    """Each goal by a word of its name: what was measured, and whether it is met."""
    goals = relay_cost.goals({part: [] for part in relay_cost.PARTS} | found)
    words = ("bytes", "message", "step of", "first step", "pauses", "done again")
    return {next(word for word in words if word in goal.name): (goal.measured, goal.met) for goal in goals}


def test_bytes_and_messages(relay_cost: ModuleType) -> None:
    def rates(value: float) -> list[dict[str, Any]]:
        return [{"relayed": {"rate": value}}]

    def trips(relayed: float) -> list[dict[str, Any]]:
        return [{"straight": {"4 B": 0.001}, "relayed": {"4 B": relayed}}]

    found = measured(relay_cost, bytes=rates(0.31e9), messages=trips(0.0019))
    assert found == {"bytes": (pytest.approx(0.31), True), "message": (pytest.approx(0.9), True)}
    found = measured(relay_cost, bytes=rates(0.29e9), messages=trips(0.0021))
    assert [met for _, met in found.values()] == [False, False]


def test_a_step_is_compared_within_its_turn(relay_cost: ModuleType) -> None:
    # A machine that is slow in one turn is slow with and without.
    turns = [{"straight": 10.0, "relayed": 10.2}, {"straight": 20.0, "relayed": 20.4}, {"straight": 5.0, "relayed": 5.1}]
    assert measured(relay_cost, steps=turns) == {"step of": (pytest.approx(1.02), True)}
    assert not measured(relay_cost, steps=[{"straight": 10.0, "relayed": 10.4}])["step of"][1]


def test_a_move_is_compared_within_its_turn(relay_cost: ModuleType) -> None:
    turns = [
        {"straight": [moved(5.0), moved(5.0)], "relayed": [moved(5.4), moved(5.4)]},
        {"straight": [moved(10.0), moved(10.0)], "relayed": [moved(10.8), moved(10.8)]},
    ]
    assert measured(relay_cost, moves=turns) == {
        "first step": (pytest.approx(1.08), True),
        "pauses": (pytest.approx(0.0), True),
        "done again": (0, True),
    }
    longer = [{"straight": [moved(5.0, waited=0.02)], "relayed": [moved(5.6, waited=0.08, again=1)]}]
    assert [met for _, met in measured(relay_cost, moves=longer).values()] == [False, False, False]


def test_a_pause_that_no_log_tells_is_the_gap_between_steps(relay_cost: ModuleType) -> None:
    turns = [{"straight": [moved(5.0, waited=None, pause=0.2)], "relayed": [moved(5.0, waited=None, pause=0.23)]}]
    assert measured(relay_cost, moves=turns)["pauses"] == (pytest.approx(30), True)


def test_the_tables_have_what_was_measured(relay_cost: ModuleType) -> None:
    turns = [{"straight": [moved(5.0)], "relayed": [moved(5.6, waited=0.05)]}]
    text = relay_cost.show({part: [] for part in relay_cost.PARTS} | {"moves": turns})
    assert [line.split() for line in text.splitlines()[2:]] == [
        ["straight", "-", "5.0", "s", "20", "ms"],
        ["relayed", "-", "5.6", "s", "50", "ms"],
    ]
