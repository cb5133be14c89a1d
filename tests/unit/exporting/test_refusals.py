"""What cannot be exported, and where to: told in one line before anything is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.__main__ import main
from lmj_trainer.store import buckets


@pytest.fixture(autouse=True)
def _same_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "setpriority", lambda *_: None)


def write_job(output: Path, **spec: object) -> Path:
    """Leave in ``output`` what a run has there."""
    base = {
        "model": {"scratch": {}},
        "dataset": {"source": "/data.csv", "text": ["text"], "label": "label"},
        "pipeline": {"stages": 1},
        "output": {"path": str(output)},
    }
    merged = {**base, **spec}
    document = {"metadata": {"name": "tiny"}, "spec": {key: value for key, value in merged.items() if value is not None}}
    output.mkdir(parents=True)
    (output / "metrics.jsonl").write_text("{}\n")
    (output / ".job.json").write_text(LiveMigrationJob.model_validate(document).to_json())
    return output


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*words: object) -> str:
        assert main(["export", *map(str, words)]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith("error: ")
        assert told.err.count("\n") == 1
        return told.err.removeprefix("error: ").rstrip("\n")

    return call


def test_where_there_is_no_job(tmp_path: Path, refused: Callable[..., str]) -> None:
    to = ("--to", tmp_path / "model")
    assert "there is no such folder; give the job's output folder" in refused(tmp_path / "absent", *to)
    assert "no run's results are here" in refused(tmp_path, *to)
    assert "s3://jobs/x has checkpoints alone, which say nothing of the job" in refused("s3://jobs/x", *to)
    assert "--to (see lmj export --help)" in refused(tmp_path)


def test_scripts(tmp_path: Path, refused: Callable[..., str]) -> None:
    command = {"command": {"args": [str(tmp_path / "train.py")]}, "strategy": "Command", "model": None, "dataset": None}
    output = write_job(tmp_path / "command", **command)
    said = refused(output, "--to", tmp_path / "model")
    assert said == f"{output}: the job runs a script (command), which alone knows the format of its checkpoints: have it save"
    script = f"{tmp_path / 'train.py'}:__main__"
    parts = {"model": {"python": script}, "dataset": {"source": str(tmp_path / "train.py")}, "pipeline": {"stages": 1}}
    output = write_job(tmp_path / "trainer", **parts)
    said = refused(output, "--to", tmp_path / "model")
    assert said == f"{output}: the model is made by a script ({script}): it is in {output / 'model'} at the end"


def test_a_job_without_a_checkpoint(tmp_path: Path, refused: Callable[..., str]) -> None:
    output = write_job(tmp_path / "out")
    for more in ((), ("--step", 3)):
        said = refused(output, "--to", tmp_path / "model", *more)
        assert said == f"{output / 'checkpoints'} has no checkpoint yet: try again later"
    (output / "checkpoints" / "step-000000004-v1").mkdir(parents=True)
    assert "has no checkpoint yet" in refused(output, "--to", tmp_path / "model")
    assert "has no checkpoint of step 3" in refused(output, "--to", tmp_path / "model", "--step", 3)


def test_a_bucket_that_does_not_answer(tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(buckets, "RETRY", {**buckets.RETRY, "retry_timeout": timedelta(seconds=0.1)})
    output = write_job(tmp_path / "out", checkpoint={"path": "s3://jobs/x"})
    assert refused(output, "--to", tmp_path / "model").startswith("s3://jobs/x cannot be read: ")


def test_folders_that_are_taken(tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    output = write_job(tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    assert "is not empty: choose a folder that is not there yet" in refused(output, "--to", tmp_path / "full")
    assert "is a file" in refused(output, "--to", tmp_path / "full" / "file")
    for name in ("model", "adapter", "model-int8", "checkpoints/x", "cache", ".lmj/x", "checkpoints/../model"):
        assert "is what the job itself writes: choose another folder" in refused(output, "--to", output / name)
    assert "is the job's output folder" in refused(output, "--to", output)
    monkeypatch.chdir(tmp_path / "empty")
    assert "the folder of this shell: choose one inside" in refused(output, "--to", ".")


@pytest.mark.integration
def test_needs_no_torch_to_refuse(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, lmj_trainer.__main__ as m; assert m.main(sys.argv[1:]) == 2; assert 'torch' not in sys.modules"
    output = write_job(tmp_path / "out")
    command = [sys.executable, "-c", code, "export", str(output), "--to", str(tmp_path / "model")]
    subprocess.run(command, check=True, timeout=60)


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["export", "--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert "lmj export runs/reviews --to reviews-at-400 --step 400" in said
    assert json.dumps("I did not expect to like it, but I did.") in said
