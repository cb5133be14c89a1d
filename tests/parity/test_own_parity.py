"""A class of the user's own is trained to the bits of a plain loop over its model, whoever computes which of its units."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_jobs import TASK, own_job
from ranks import forked, run
from test_parity import plain as plain_loop
from test_parity import same, survive

from lmj_api.spec import LiveMigrationJob

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-task"
TRAINING = {"gradientAccumulationSteps": 2, "warmupSteps": 5, "maxGradNorm": 0.5, "weightDecay": 0.01, "seed": 7}


@pytest.fixture(scope="module", autouse=True)
def workers() -> Iterator[None]:
    with forked():
        yield


def make(folder: Path, stages: int, **changes: Any) -> LiveMigrationJob:
    """20 steps with dropout, clipping that clips, warm-up and accumulation on."""
    training = {"batchSize": 8, "epochs": 50, "maxSteps": 20, "learningRate": 1e-2, "threads": 1, **TRAINING}
    parts: dict[str, Any] = {
        "pipeline": {"stages": stages, "microBatches": 4},
        "training": training,
        "checkpoint": {"everySteps": 7},
    }
    return own_job(folder, TASK, 0.1, output={"path": str(folder / "out"), "weights": "Last"}, **{**parts, **changes})


def plain(job: LiveMigrationJob, folder: Path) -> Path:
    """As :func:`test_parity.plain`, with the loop over a class of the user's own."""
    return plain_loop(job, folder, "plain_own.py")


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loop")
    return plain(make(folder, 1), folder / "plain")


@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(5, marks=pytest.mark.slow)])
def test_any_number_of_stages_is_a_plain_loop(loop: Path, tmp_path: Path, stages: int) -> None:
    run(make(tmp_path, stages), tmp_path / "logs")
    same(tmp_path / "out", loop)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_worker_is_killed_and_its_memory_goes_on(loop: Path, tmp_path: Path, victim: int) -> None:
    survive(make(tmp_path, 2), tmp_path / "logs", victim)
    same(tmp_path / "out", loop)


def test_replicas_of_stages_are_one(tmp_path: Path) -> None:
    """With dropout: each rank has a process, and a generator, of its own."""
    for name, stages, replicas in (("one", 1, 1), ("four", 2, 2)):
        job = make(tmp_path / name, stages, dataParallel={"shards": 4, "replicas": replicas})
        run(job, tmp_path / name / "logs")
    same(tmp_path / "one" / "out", tmp_path / "four" / "out")


@pytest.mark.parametrize(
    "changes", [pytest.param({"gradientCheckpointing": True}, marks=pytest.mark.slow), {"precision": "BFloat16"}]
)
def test_other_ways_to_compute_are_the_same_for_any_number_of_stages(loop: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    training = make(tmp_path, 1).spec.training.model_dump(by_alias=True, mode="json") | changes
    for stages in (1, 3):
        run(make(tmp_path / str(stages), stages, training=training), tmp_path / str(stages) / "logs")
    same(tmp_path / "1" / "out", tmp_path / "3" / "out")
    if "gradientCheckpointing" in changes:
        same(tmp_path / "1" / "out", loop)


def test_the_example_is_a_plain_loop(tmp_path: Path) -> None:
    """Convolutions, and a head that takes the mean over time."""
    job = make(tmp_path, 3)
    file = EXAMPLE / "my_task.py"
    model = job.spec.model.model_copy(update={"python": f"{file}:MyTask", "python_sha256": None})
    dataset = job.spec.dataset.model_copy(update={"source": str(EXAMPLE / "signals.jsonl")})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"model": model, "dataset": dataset})})
    run(job, tmp_path / "logs")
    same(tmp_path / "out", plain(job, tmp_path / "plain"))
