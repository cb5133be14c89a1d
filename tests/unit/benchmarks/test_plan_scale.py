"""What the benchmark of the plan counts, and what it makes of it."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark reads /proc", allow_module_level=True)


@pytest.fixture
def plan_scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import plan_scale

    return plan_scale


@pytest.mark.parametrize(("stages", "replicas"), [(1, 2), (4, 1), (4, 8)])
def test_a_commit_is_a_report_and_an_answer_of_each_other_rank(plan_scale: ModuleType, stages: int, replicas: int) -> None:
    messages = plan_scale.commit_messages.commit(stages, replicas)
    assert (messages.received, messages.sent) == (stages * replicas - 1, stages * replicas - 1)


@pytest.mark.parametrize("replicas", [2, 8])
def test_a_sum_is_two_messages_to_each_other_replica(plan_scale: ModuleType, replicas: int) -> None:
    messages = plan_scale.commit_messages.exchange(replicas)
    assert (messages.received, messages.sent) == (2 * (replicas - 1), 2 * (replicas - 1))


def test_a_lost_replica_costs_one_pass_and_a_word_to_each_of_the_others(plan_scale: ModuleType) -> None:
    found = plan_scale.measure(4, repeats=1)
    assert (found.ranks, found.passes, found.commit) == (16, 1, 30)
    # A pod is made, the lost one removed, and each member told; who leads looks for what a member left behind.
    assert 12 <= found.actions <= 16
    assert 0 < found.status <= found.largest
    assert found.answer < found.view, "a view is not listed in an agent's answer"
    assert found.seconds > 0
    assert found.told > 0


def test_goals_are_of_the_most_ranks(plan_scale: ModuleType) -> None:
    small = plan_scale.Measured(8, 0.001, 0.002, 1, 0.002, 0.01, 10, 4000, 5000, 700, 600, 14, 4)
    large = replace(small, ranks=1024, steady=0.09, change=0.19, actions=1030, commit=2046)
    found = plan_scale.goals([small, replace(small, ranks=64, steady=0.008), large], 900_000)
    assert all(each.met for each in found)
    for worse in ({"steady": 0.11}, {"change": 0.21}, {"passes": 2}, {"actions": 2100}, {"commit": 3000}):
        found = plan_scale.goals([small, replace(small, ranks=64, steady=0.008), replace(large, **worse)], 900_000)
        assert [each.met for each in found].count(False) == 1, worse
    assert not plan_scale.goals([small, small, large], 2_000_000)[5].met


def test_costs_grow_with_the_links(plan_scale: ModuleType) -> None:
    cost = plan_scale.rpc_cost.Cost(send=1e-4, take=2e-4, beat=5e-5, watch=1e-5, sockets=6)
    assert cost.of_step(1) == 0
    assert cost.of_step(1024) == pytest.approx(0.3069)
    assert cost.of_second(1024, 8) == pytest.approx(1023 * 8 * 1.1e-4)
