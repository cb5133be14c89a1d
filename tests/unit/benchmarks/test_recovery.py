"""What the benchmark of recoveries takes for a new step, and for a lost one."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark reads /proc", allow_module_level=True)

BEFORE = [(step, step / 10) for step in range(1, 51)]
"""A step each tenth of a second; the 50th ended at 5.0."""


@pytest.fixture
def recovery(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import recovery

    return recovery


def test_no_new_step_yet(recovery: ModuleType) -> None:
    assert recovery.judge(BEFORE, killed=5.02, newborn=5.1) is None


def test_the_next_step_without_loss(recovery: ModuleType) -> None:
    seconds, lost = recovery.judge([*BEFORE, (51, 5.25), (52, 5.35)], killed=5.02, newborn=5.1)
    assert seconds == pytest.approx(0.23)
    assert lost == 0


def test_a_step_that_survivors_finished_is_not_the_next(recovery: ModuleType) -> None:
    seconds, lost = recovery.judge([*BEFORE, (51, 5.03), (52, 5.25)], killed=5.02, newborn=5.1)
    assert seconds == pytest.approx(0.23)
    assert lost == 0


def test_steps_done_again_are_lost_and_not_new(recovery: ModuleType) -> None:
    again = [(step, 10 + step / 10) for step in range(41, 51)]
    assert recovery.judge([*BEFORE, *again], killed=5.02, newborn=9.0) is None
    seconds, lost = recovery.judge([*BEFORE, *again, (51, 15.1)], killed=5.02, newborn=9.0)
    assert seconds == pytest.approx(10.08)
    assert lost == 10


def test_what_never_came_back_counts_as_long_as_it_was_waited_for(recovery: ModuleType) -> None:
    trials = [
        recovery.Trial("any", 0, None, None, 4),
        recovery.Trial("any", 0, None, None, 4),
        recovery.Trial("any", 1, 9.0, 3, 2),
    ]
    assert recovery._median(trials) == recovery.NEVER_SECONDS
    assert recovery.row(trials).split()[1:4] == ["3", "2", "60.000"]


def test_a_job_that_is_looked_at_is_read_once_and_a_new_file_from_its_start(recovery: ModuleType, tmp_path: Path) -> None:
    class Idle:
        def poll(self) -> None:
            return None

    job = recovery.Torchrun(tmp_path, tmp_path)
    job.process = Idle()
    metrics = tmp_path / "metrics.jsonl"
    assert job.look() == 0
    metrics.write_text('{"step": 1, "time": 1.0}\n{"step": 2, "ti')
    assert job.look() == 1
    with metrics.open("a") as file:
        file.write('me": 2.0}\n')
    assert job.look() == 2
    beside = tmp_path / "new"
    beside.write_text('{"step": 1, "time": 1.0}\n{"step": 2, "time": 3.0}\n')
    beside.replace(metrics)
    assert job.look() == 2
    assert sorted(job.seen) == [(1, 1.0), (2, 2.0), (2, 3.0)]


def test_steps_that_are_done_again_in_the_same_file_are_seen(recovery: ModuleType, tmp_path: Path) -> None:
    import steps

    metrics = tmp_path / "metrics.jsonl"
    lines = [f'{{"step": {step}, "time": {step}.0}}\n' for step in range(1, 5)]
    metrics.write_text("".join(lines))
    job = steps.Steps(metrics)
    assert job.look() == 4
    metrics.write_text("".join(lines[:3]) + '{"step": 4, "time": 9.0}\n')
    assert job.look() == 4
    assert sorted(job.seen)[3:] == [(4, 4.0), (4, 9.0)]
    assert steps.repeated(job.seen) == 1
    assert steps.gaps(job.seen) == [(2, 1.0), (3, 1.0), (4, 1.0)]
    assert steps.median_step(job.seen) == 1.0


def test_the_birth_of_a_process(recovery: ModuleType) -> None:
    import os
    import time

    assert time.time() - 3600 * 24 < recovery.born(os.getpid()) <= time.time()
    assert recovery.born(2**22 + 1) is None
