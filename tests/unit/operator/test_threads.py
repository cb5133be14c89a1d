"""Threads that nobody chose: the machine's, shared out when a run begins, and then the run's for good, for its bits depend on them."""

from pathlib import Path

import pytest

from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.local.threads import processors, with_threads


def job(stages: int = 2, threads: int | None = None) -> LiveMigrationJob:
    dataset = {"source": "d.csv", "text": ["text"], "label": "label"}
    spec = {
        "pipeline": {"stages": stages},
        "model": {"scratch": {}},
        "dataset": dataset,
        "training": {"threads": threads},
        "output": {"path": "/o"},
    }
    return LiveMigrationJob.model_validate({"metadata": {"name": "job"}, "spec": spec})


@pytest.mark.parametrize(
    ("stages", "chosen", "kept", "there", "threads", "line"),
    [
        (2, None, None, 16, 8, "training.threads: 8 a rank (16 processors for 2 ranks)"),
        (3, None, None, 16, 5, "training.threads: 5 a rank (16 processors for 3 ranks)"),
        (4, None, None, 2, 1, "training.threads: 1 a rank (2 processors for 4 ranks)"),
        (1, None, None, 1000, 256, "training.threads: 256 a rank (1000 processors for 1 ranks)"),
        (4, None, 8, 64, 8, "training.threads: 8 a rank (as when the run began)"),
        (2, 3, 8, 64, 3, None),
    ],
)
def test_they_are_the_jobs_or_the_runs_or_a_share(
    stages: int, chosen: int | None, kept: int | None, there: int, threads: int, line: str | None
) -> None:
    settled, told = with_threads(job(stages, chosen), kept, there)
    assert (settled.spec.training.threads, told) == (threads, line)
    assert settled.spec.training.computing_threads == threads


def test_nobody_has_settled_them() -> None:
    assert job().spec.training.computing_threads == 1


@pytest.mark.parametrize(("files", "most"), [({"cpu.max": "150000 100000"}, 1), ({"cpu.max": "max 100000"}, None), ({}, None)])
def test_a_containers_quota_counts(files: dict[str, str], most: int | None, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    free = processors(tmp_path / "nowhere")
    assert free >= 1
    assert processors(tmp_path) == (free if most is None else min(most, free))


def test_the_quota_of_the_older_control_groups(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    for quota, most in (("-1", processors(tmp_path / "nowhere")), ("50000", 1), ("100000", 1)):
        (tmp_path / "cpu/cpu.cfs_quota_us").write_text(f"{quota}\n")
        assert processors(tmp_path) == most
