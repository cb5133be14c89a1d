"""Ranks that move while the job trains, again and again and whatever dies meanwhile, change nothing of what it learns."""

import os
import random
import signal
from pathlib import Path

import pytest
from faults import last_step
from jobs import Job, wait_until
from moving import SETTINGS, SPARSE, Phase, Victim, assert_as_undisturbed, disturb, leave, migrate, migrate_through_a_checkpoint
from test_chaos import running, steps_and_losses

pytestmark = pytest.mark.e2e

SEED = int(os.environ.get("LMJ_MOVES_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.mark.parametrize("moves", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_moves_change_nothing(tmp_path: Path, moves: int) -> None:
    print(f"LMJ_MOVES_SEED={SEED}")
    source = random.Random(SEED)
    wanted = [(1,), (0,), (0, 1)] + [source.choice([(0,), (1,), (0, 1)]) for _ in range(moves - 3)]
    pauses = [source.randrange(40) for _ in wanted]
    job = Job(tmp_path / "moved")
    with running(job, 100_000, *SETTINGS) as process:
        wait_until(lambda: last_step(job) > 3, process)
        first = [job.worker(rank) for rank in (0, 1)]
        for ranks, pause in zip(wanted, pauses, strict=True):
            step = last_step(job) + pause
            wait_until(lambda step=step: last_step(job) >= step, process)
            told = migrate(job, *ranks)
            assert told["migrations"] == len(ranks)
            assert {i["rank"] for i in told["incidents"]} == set(ranks)
            assert all(i["kind"] == "Moved" and i["stepsLost"] == 0 for i in told["incidents"])
            print(f"step {step}:", ranks, [f"{i['seconds']:.3f} s" for i in told["incidents"]], flush=True)
        # No process of the first view is left.
        assert not {job.worker(rank) for rank in (0, 1)} & set(first)
        leave(job, process, last_step(job) + 20)
    status = job.status()
    assert (status["migrations"], status["stepsLost"], status["restarts"]) == (sum(map(len, wanted)), 0, 0)
    assert_as_undisturbed(job, Job, tmp_path / "undisturbed")


def test_moves_through_a_checkpoint_lose_no_step_and_are_no_restart(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with running(job, 100_000, SPARSE, "migration.strategy=Checkpoint") as process:
        wait_until(lambda: last_step(job) > 3, process)
        first = [job.worker(rank) for rank in (0, 1)]
        for ranks in ((1,), (0, 1)):
            told = migrate_through_a_checkpoint(job, *ranks)
            assert [(i["kind"], i["stepsLost"]) for i in told["incidents"]] == [("Moved", 0)] * len(ranks)
            print(ranks, [f"{i['seconds']:.3f} s" for i in told["incidents"]])
        assert not {job.worker(rank) for rank in (0, 1)} & set(first)
        leave(job, process, last_step(job) + 20)
    status = job.status()
    assert (status["migrations"], status["stepsLost"], status["restarts"]) == (3, 0, 0)
    steps = [step for step, _ in steps_and_losses(job)]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_the_rank_of_a_pod_that_is_told_to_end_moves_first(tmp_path: Path, rank: int) -> None:
    job = Job(tmp_path / "told")
    with running(job, 100_000, *SETTINGS) as process:
        wait_until(lambda: last_step(job) > 3, process)
        source = job.pod(job.status()["ranks"][rank]["pod"])
        os.kill(source, signal.SIGTERM)
        wait_until(lambda: job.status()["migrations"] == 1, process)
        wait_until(lambda: not Path(f"/proc/{source}").exists(), process)
        leave(job, process, last_step(job) + 20)
    status = job.status()
    assert (status["migrations"], status["stepsLost"], status["restarts"]) == (1, 0, 0)
    assert_as_undisturbed(job, Job, tmp_path / "undisturbed")


EVERY = {phase.name.lower(): [(1, phase, victim) for victim in Victim] for phase in Phase}
"""All of what can be hit, for each phase of a move."""
SOME = [
    (1, Phase.STARTING, Victim.TARGET_WORKER),
    (0, Phase.COPYING, Victim.SOURCE),
    (1, Phase.IN_SYNC, Victim.OTHER),
    (0, Phase.LEFT, Victim.TARGET_POD),
]


@pytest.mark.slow
@pytest.mark.parametrize("faults", [pytest.param(each, id=name) for name, each in {"some": SOME, **EVERY}.items()])
def test_a_death_while_a_rank_moves_costs_nothing(tmp_path: Path, faults: list[tuple[int, Phase, Victim]]) -> None:
    job = Job(tmp_path / "disturbed")
    with running(job, 100_000, *SETTINGS) as process:
        wait_until(lambda: last_step(job) > 3, process)
        for rank, phase, victim in faults:
            disturb(job, process, rank, phase, victim)
        leave(job, process, last_step(job) + 20)
    assert job.status()["stepsLost"] == 0
    assert_as_undisturbed(job, Job, tmp_path / "undisturbed")
