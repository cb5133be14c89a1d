"""What the benchmark of costs makes of its turns."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark reads /proc", allow_module_level=True)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import costs

    return costs


def turns(costs: ModuleType, mode: str, *pairs: tuple[float, float]) -> list[object]:
    """Turns of both jobs; who is first changes."""
    made = []
    for number, (bare, kept) in enumerate(pairs):
        both = [costs.Turn(costs.BARE, mode, bare, 1.0), costs.Turn(costs.KEPT, mode, kept, 1.1)]
        made += both if number % 2 == 0 else both[::-1]
    return made


def test_each_round_is_compared_with_itself(costs: ModuleType) -> None:
    """A machine that gets slower from round to round is not what is measured."""
    done = [
        *turns(costs, costs.SPARE, (1.0, 1.01), (2.0, 2.04), (4.0, 4.12)),
        *turns(costs, costs.BUSY, (1.0, 1.1), (1.0, 1.2), (1.0, 1.3)),
    ]
    assert costs.shares(done, costs.SPARE) == pytest.approx([0.01, 0.02, 0.03])
    goals, medians = costs.table(done)
    assert medians == {costs.SPARE: pytest.approx(0.02), costs.BUSY: pytest.approx(0.2)}
    assert [goal.met for goal in costs.table(done[:4] + done[6:])[0]] == [True]
    assert goals[0].measured == pytest.approx(2.0)


def test_a_turn_has_whole_cycles_of_checkpoints(costs: ModuleType) -> None:
    assert costs.STEPS % costs.CYCLE == 0
    assert costs.ARMS[costs.KEPT]["checkpoint.everySteps"] == costs.CYCLE
    assert costs.ARMS[costs.BARE].keys() < costs.ARMS[costs.KEPT].keys()
