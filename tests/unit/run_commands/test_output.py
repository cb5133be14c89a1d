"""A run's results, brought from object storage for a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.trackers.run_folder import RunFolder

from lmj_api.layout import Layout
from lmj_api.protocol import Evaluation
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.run_commands.output import output_folder, read_run
from lmj_trainer.store import posix, registry
from lmj_trainer.store.port import RefusedError
from lmj_trainer.worker.collected import as_json
from lmj_trainer.worker.results import Results

URI = "s3://bucket/run"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What lies in URI."""
    root = tmp_path / "buckets"
    monkeypatch.setitem(registry.STORES, "s3", lambda uri: posix.folder(root / uri.removeprefix("s3://")))
    (root / "bucket" / "run").mkdir(parents=True)
    return root / "bucket" / "run"


@pytest.fixture
def run(tmp_path: Path, bucket: Path) -> RunFolder:
    """A run on a machine, whose job is written down in the bucket."""
    made = RunFolder(tmp_path / "machine", [])
    content = json.loads(made.layout.trained.read_text())
    content["spec"]["output"] |= {"path": URI, "scratch": str(tmp_path / "machine")}
    content["spec"]["checkpoint"]["path"] = None
    (bucket / ".job.json").write_text(json.dumps(content))
    return made


def refuse(text: str) -> None:
    raise AssertionError(text)


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def evaluation(step: int) -> Evaluation:
    return Evaluation(split="validation", step=step, samples=8, loss=1.0, accuracy=0.5)


def test_a_folder_is_the_folder_itself(tmp_path: Path) -> None:
    with output_folder(str(tmp_path / "out"), refuse) as folder:
        assert folder == tmp_path / "out"


def test_what_was_recorded_so_far_is_brought_while_a_job_trains(run: RunFolder, bucket: Path) -> None:
    results = Results(posix.folder(bucket), run.layout)
    run.commit(1, 4)
    lines = run.layout.metrics.read_bytes().splitlines(keepends=True)
    results.add_lines(1, 0, b"".join(lines[:3]))
    results.add_evaluations(1, as_json([evaluation(3)]))
    results.begin(2, 2)  # the step 3 is done again
    results.add_lines(2, 0, b"".join(lines[2:]))
    results.add_evaluations(2, as_json([evaluation(4)]))
    with output_folder(f"{URI}/", refuse) as folder:
        assert steps(folder) == [1, 2, 3, 4]
        assert [e["step"] for e in json.loads((folder / "evaluation.json").read_text())] == [4]
        spec = read_run(folder).spec
        assert spec.output.path == str(folder)
        layout = Layout.of(spec)
        assert (layout.results, layout.bucket) == (None, f"{URI}/checkpoints")
    assert not folder.exists()


def test_published_results_and_the_folders_that_are_asked_for(run: RunFolder, bucket: Path) -> None:
    run.commit(1, 3)
    (bucket / "metrics.jsonl").write_bytes(run.layout.metrics.read_bytes())
    for name in ("model", "adapter"):
        (bucket / name / "below").mkdir(parents=True)
        (bucket / name / "config.json").write_text(name)
        (bucket / name / "below" / "x").write_text("y")
    with output_folder(URI, print, "model", "int8") as folder:
        assert steps(folder) == [1, 2, 3]
        assert (folder / "model" / "config.json").read_text() == "model"
        assert (folder / "model" / "below" / "x").read_text() == "y"
        assert not (folder / "adapter").exists()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("s3://bucket", "s3://bucket: this is a whole bucket: name the folder in it that is the job's output.path"),
        ("s3://bucket/other", "s3://bucket/other: no run's results are here"),
        ("s3://Bucket!/run", "s3://Bucket!/run: write s3://BUCKET/FOLDER"),
    ],
)
def test_a_place_without_a_run(run: RunFolder, place: str, said: str) -> None:
    with pytest.raises(UserError) as caught, output_folder(place, refuse):
        pass
    assert str(caught.value) == said


def test_what_is_no_job_is_not_taken_for_one(run: RunFolder, bucket: Path) -> None:
    (bucket / ".job.json").write_text("{}")
    with (
        pytest.raises(UserError, match=r"\.job\.json is not a job, so nobody knows whose results are there"),
        output_folder(URI, refuse),
    ):
        pass


def test_an_error_names_the_place_and_no_folder_of_a_moment(run: RunFolder) -> None:
    with pytest.raises(UserError) as caught, output_folder(URI, refuse) as folder:
        raise UserError(f"{folder}: nothing is here")
    assert str(caught.value) == f"{URI}: nothing is here"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (RefusedError("s3://bucket/run: AccessDenied"), UserError, "AccessDenied: give credentials that may read it"),
        (OSError("no answer"), OutageError, f"{URI} cannot be read: no answer"),
    ],
)
def test_storage_that_gives_nothing(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, error: OSError, kind: type[Exception], said: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("lmj_trainer.run_commands.output.collect", fail)
    with pytest.raises(kind, match=said), output_folder(URI, refuse):
        pass
