"""Rank 0 writes down whose results the output folder has, and leaves another job's alone."""

from pathlib import Path
from typing import Any

import pytest

from lmj_api.layout import Layout
from lmj_api.results import trained_job
from lmj_api.spec import LiveMigrationJob, Training
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.errors import UserError
from lmj_trainer.worker import claim as claim_module
from lmj_trainer.worker.claim import Claimant, claim, refuse_other, require_start


def job(output: Path, name: str = "a", **training: Any) -> LiveMigrationJob:
    spec = {
        "model": {"scratch": {}},
        "dataset": {"source": "/d.csv", "text": ["text"], "label": "label"},
        "training": training,
        "output": {"path": str(output)},
        "template": {"spec": {"containers": []}},
    }
    return LiveMigrationJob.model_validate({"metadata": {"name": name}, "spec": spec})


def silent(message: str) -> None:
    raise AssertionError(message)


def test_another_job_s_results_are_left_alone(tmp_path: Path) -> None:
    mine = job(tmp_path / "out")
    claim(mine, silent)
    layout = Layout.of(mine.spec)
    claim(job(tmp_path / "out", epochs=7), silent)  # nothing was trained yet
    claim(mine, silent)
    layout.metrics.write_text("{}\n")
    claim(mine, silent)
    claim(job(tmp_path / "out", "b", threads=2), silent)  # the same training
    for refused in (refuse_other, claim):
        with pytest.raises(
            UserError, match=r"has the results of another job \(training\.epochs 3 → 7\): choose another output\.path$"
        ):
            refused(job(tmp_path / "out", epochs=7), silent)
    kept = trained_job(layout)
    assert kept is not None
    assert (kept.metadata.name, kept.spec.training.epochs, kept.spec.template) == ("b", 3, None)
    assert state_digest(kept.spec) == state_digest(mine.spec)


def test_a_continued_run_takes_the_results_over(tmp_path: Path) -> None:
    mine = job(tmp_path)
    claim(mine, silent)
    Layout.of(mine.spec).metrics.write_text("{}\n")
    part = {"step": 9, "state_digest": state_digest(mine.spec)}
    longer = job(tmp_path, epochs=7, continues=[part])
    with pytest.raises(UserError, match=r"epochs 3 → 7, training\.continues none → from step 9"):
        claim(job(tmp_path, epochs=7, continues=[{**part, "state_digest": "0" * 32}]), silent)
    claim(longer, silent)
    claim(job(tmp_path, epochs=8, continues=[part]), silent)  # it had no checkpoint of its own yet
    with pytest.raises(UserError, match="another job"):
        claim(mine, silent)


def test_storage_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file, where a folder should be")
    said: list[str] = []
    claim(job(tmp_path / "out"), said.append)
    assert len(said) == 1
    assert "cannot be" in said[0]


def test_it_is_tried_again_until_it_is_written(tmp_path: Path) -> None:
    mine, said = job(tmp_path / "out"), list[str]()
    claimant, trained = Claimant(mine, said.append), Layout.of(mine.spec).trained
    (tmp_path / "out").write_text("a file, where a folder should be")
    claimant.claim()
    claimant.ensure()
    assert len(said) == 2
    (tmp_path / "out").unlink()
    claimant.ensure()
    assert trained.exists()
    trained.unlink()
    claimant.ensure()
    assert not trained.exists(), "storage that hangs by now delays no checkpoint"
    claimant.claim()
    assert (trained.exists(), len(said)) == (True, 2)


def test_a_damaged_record_is_a_user_s_to_look_at(tmp_path: Path) -> None:
    layout = Layout.of(job(tmp_path).spec)
    layout.metrics.write_text("{}\n")
    layout.trained.write_text("{")
    with pytest.raises(UserError, match="not a job"):
        refuse_other(job(tmp_path), silent)


def test_a_continued_run_begins_nowhere_else() -> None:
    continued = Training.model_validate({"continues": [{"step": 9, "state_digest": "0" * 32}]})
    require_start(continued, 9, 9)
    require_start(Training(), 0, 1)
    with pytest.raises(UserError, match=r"goes on from step 9 .* cannot be used any more"):
        require_start(continued, 8, 20)
    with pytest.raises(UserError, match="12 steps are trained already, and the job has 10"):
        require_start(continued, 12, 10)


def test_a_claim_that_is_there_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All wait for it while a view begins."""
    mine = job(tmp_path / "out")
    Claimant(mine, silent).claim()
    trained = Layout.of(mine.spec).trained
    written = trained.stat().st_mtime_ns, trained.read_bytes()
    judged: list[LiveMigrationJob] = []
    monkeypatch.setattr(claim_module, "refuse_other", lambda job, warn: judged.append(job))
    Claimant(mine, silent).claim()
    assert (trained.stat().st_mtime_ns, trained.read_bytes()) == written
    assert judged == []
    other = job(tmp_path / "out", epochs=7)
    Claimant(other, silent).claim()
    assert judged == [other]
    assert trained.read_bytes() != written[1]
