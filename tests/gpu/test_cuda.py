"""The same on a GPU: any number of stages and replicas, killed, moved and resumed, by ``==``. Skipped where there is no GPU."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import last_step
from jobs import Job, wait_until
from moving import SETTINGS, assert_as_undisturbed, leave, migrate
from parity_jobs import make_data, make_job, make_model
from ranks import group, run
from test_chaos import running
from test_parity import kill, losses, newest, same

from lmj_api.view import Resume
from lmj_trainer.state.host_copy import PIECE, copy_beside

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible")]
CUDA = {"device": "CUDA"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    return make_data(folder / "rows.csv"), make_model(folder / "bert", "bert")


@pytest.mark.parametrize("precision", ["Float32", "BFloat16", "Float16"])
def test_stages_and_a_kill_change_nothing(inputs: tuple[Path, Path], tmp_path: Path, precision: str) -> None:
    training = CUDA | {"precision": precision}
    one, two, killed = (tmp_path / name for name in ("one", "two", "killed"))
    run(make_job(one, *inputs, 1, training=training), one / "logs")
    assert losses(one)[-1] < losses(one)[0]
    run(make_job(two, *inputs, 2, training=training), two / "logs")
    same(one, two)
    with group(make_job(killed, *inputs, 2, training=training), killed / "logs") as ranks:
        ranks.start()
        ranks.form(Resume(step=0))
        kill(ranks, 1, 16)
        ranks.start(1)
        ranks.form(newest(killed))
        ranks.finish()
    same(one, killed)


def test_adapters_of_any_number_of_stages(tmp_path: Path) -> None:
    data, source = make_data(tmp_path / "rows.csv"), make_model(tmp_path / "llama", "llama")
    for stages in (1, 2):
        training = CUDA | {"precision": "BFloat16", "gradientCheckpointing": True}
        job = make_job(tmp_path / str(stages), data, source, stages, lora={"r": 4, "alpha": 8}, training=training)
        run(job, tmp_path / f"logs-{stages}")
    assert losses(tmp_path / "1") == losses(tmp_path / "2")


@pytest.mark.parametrize("training", [{}, {"precision": "BFloat16", "gradientCheckpointing": True}], ids=["float32", "bfloat16"])
def test_replicas_of_stages(inputs: tuple[Path, Path], tmp_path: Path, training: dict[str, Any]) -> None:
    for name, stages, replicas in (("one", 1, 1), ("four", 2, 2)):
        out, parallel = tmp_path / name, {"shards": 4, "replicas": replicas}
        run(make_job(out, *inputs, stages, training=CUDA | training, dataParallel=parallel), out / "logs")
    same(tmp_path / "one", tmp_path / "four")


@pytest.mark.parametrize("elements", [1, PIECE, 2 * PIECE + 5])
def test_a_copy_beside_is_of_the_state_that_was_made(elements: int) -> None:
    state, target = torch.zeros(elements, device="cuda"), torch.full((elements,), float("nan"))
    state += torch.arange(elements, device="cuda")
    torch.cuda._sleep(100_000_000)  # what changes it is still queued
    state *= 2
    copy_beside(target, state)
    assert torch.equal(target, 2 * torch.arange(elements, dtype=torch.float32))


def test_moves_and_a_kill_of_the_command(tmp_path: Path) -> None:
    """``lmj run``: each rank moves to a new process, then a worker is killed, whose state on a GPU is gone: its snapshot is not."""
    more = ("training.device=CUDA", "recovery.memorySnapshot.everySteps=1")
    job = Job(tmp_path / "moved")
    with running(job, 100_000, *SETTINGS, *more) as process:
        wait_until(lambda: last_step(job) > 3, process)
        for ranks in ((1,), (0, 1)):
            told = migrate(job, *ranks)
            assert all(i["kind"] == "Moved" and i["stepsLost"] == 0 for i in told["incidents"])
            print(ranks, [f"{i['seconds']:.3f} s" for i in told["incidents"]])
        before = last_step(job)
        os.kill(job.worker(1), signal.SIGKILL)
        wait_until(lambda: last_step(job) > before + 20, process)
        leave(job, process, last_step(job) + 20)
    status = job.status()
    assert (status["migrations"], status["restarts"]) == (3, 1)
    assert status["stepsLost"] <= 2
    print("steps lost by the kill:", status["stepsLost"], status["incidents"][-1:])
    assert_as_undisturbed(job, Job, tmp_path / "undisturbed", *more)
