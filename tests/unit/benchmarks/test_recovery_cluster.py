"""What the benchmark of lost pods takes for the first step of the next view."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark reads /proc", allow_module_level=True)

BEFORE = [(step, step / 10) for step in range(1, 51)]
"""A step each tenth of a second; the 50th ended at 5.0."""


@pytest.fixture
def cluster_recovery(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import recovery_cluster

    return recovery_cluster


def test_the_old_view_may_go_on_until_its_processes_end(cluster_recovery: ModuleType) -> None:
    late = [*BEFORE, (51, 5.1), (52, 5.2)]
    assert cluster_recovery.judge(late, 5.02, resume=52) is None
    seconds, lost = cluster_recovery.judge([*late, (53, 6.52)], 5.02, resume=52)
    assert seconds == pytest.approx(1.5)
    assert lost == 0


def test_from_a_checkpoint_steps_are_done_again(cluster_recovery: ModuleType) -> None:
    again = [(41, 7.1), (42, 7.2)]
    assert cluster_recovery.judge(BEFORE, 5.02, resume=40) is None
    assert cluster_recovery.judge([*BEFORE, *again], 5.02, resume=40) is None
    again += [(step, 7 + (step - 40) / 10) for step in range(43, 53)]
    seconds, lost = cluster_recovery.judge([*BEFORE, *again], 5.02, resume=40)
    assert seconds == pytest.approx(8.1 - 5.02)
    assert lost == 10


def test_what_was_never_noticed_counts_as_long_as_it_was_waited_for(cluster_recovery: ModuleType) -> None:
    pod = cluster_recovery.POD
    trials = [
        cluster_recovery.Trial(pod, "replica", 0, None, "", None, None, None, ""),
        cluster_recovery.Trial(pod, "replica", 1, 0.1, "the operator", 0.5, 0, None, "it goes on"),
    ]
    goals = {goal.name: goal for goal in cluster_recovery.judged(trials)}
    assert not goals["trials without a new step within two minutes"].met
    assert goals["pod deleted, replica: to the next new step, p50"].measured > 3
    assert cluster_recovery.row(trials).split()[3:5] == ["2", "1"]


def test_a_process_and_its_children_are_a_family(cluster_recovery: ModuleType) -> None:
    import os
    import subprocess

    child = subprocess.Popen(["sleep", "100"])
    try:
        assert {os.getpid(), child.pid} <= set(cluster_recovery.family(os.getpid()))
        assert cluster_recovery.agents("no-job-of-this-name") == {}
    finally:
        child.kill()
        child.wait()
