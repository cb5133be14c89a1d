"""``lmj report``: from files to a page, and one line for what is wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.spec.job import LiveMigrationJob
from lmj_api.status import Incident, IncidentKind, JobStatus, Phase
from lmj_operator.cli.errors import CommandError
from lmj_operator.cli.report.command import read_run

pytestmark = pytest.mark.integration

JOB: dict[str, Any] = {
    "apiVersion": "lmj.dev/v1alpha1",
    "kind": "LiveMigrationJob",
    "metadata": {"name": "tiny", "labels": {"a": "b"}},
    "spec": {
        "model": {"scratch": {"layers": 3}},
        "dataset": {"source": "d.csv", "text": ["t"], "label": "l"},
        "output": {"path": "/results/tiny"},
    },
}
EVALUATION = {
    "split": "test",
    "step": 3,
    "samples": 4,
    "loss": 0.5,
    "accuracy": 0.75,
    "f1": 0.7,
    "labels": ["a"],
    "confusion": [[4]],
}


def lmj(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "lmj_operator.cli.main", "report", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, cwd=cwd)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output folder with three steps, a move, an evaluation and two checkpoints, one of them unfinished."""
    folder = tmp_path / "out"
    (folder / ".lmj").mkdir(parents=True)
    lines = [json.dumps({"step": s, "epoch": 0.1, "loss": 1 / s, "time": 1e9 + s}) for s in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "evaluation.json").write_text(json.dumps([EVALUATION]))
    moved = Incident(
        time="2026-01-01T00:00:00Z", kind=IncidentKind.MOVED, rank=1, pod="tiny-r1-1", message="rank 1 moved", view=1, step=2
    )
    status = JobStatus(phase=Phase.SUCCEEDED, message="trained", migrations=1, incidents=[moved])
    (folder / ".lmj" / "status.json").write_text(status.model_dump_json(by_alias=True))
    (folder / ".lmj" / "job.json").write_text(LiveMigrationJob.model_validate(JOB).to_json())
    whole, half = (folder / "checkpoints" / name for name in ("step-000000002-v1", "step-000000003-v1"))
    whole.mkdir(parents=True)
    half.mkdir()
    files = [ManifestFile(name="rank-0.safetensors", size=1500, xxh128="0" * 32)]
    manifest = Manifest(job="tiny", view=1, step=2, epoch=0.1, state_digest="d", seconds=1.0, best=True, files=files)
    (whole / "manifest.json").write_text(manifest.to_json())
    return folder


def test_a_folder_becomes_one_file(output: Path, tmp_path: Path) -> None:
    told = lmj("out", "-o", "r.html", cwd=tmp_path)
    assert (told.returncode, told.stdout, told.stderr) == (0, b"r.html: 3 steps, 1 incident or move\n", b"")
    html = (tmp_path / "r.html").read_text()
    for part in (
        "bert from random weights: 3 layers",
        "rank 1 moved",
        "0.7500",
        "step-000000002-v1",
        "1.5 KB",
        "was not finished",
    ):
        assert part in html


def test_dash_is_standard_output(output: Path) -> None:
    told = lmj(str(output), "-o", "-", cwd=output)
    assert (told.returncode, told.stderr) == (0, b"")
    assert told.stdout.startswith(b"<!DOCTYPE html>")
    assert told.stdout.endswith(b"</html>\n")


def test_the_files_of_a_cluster_with_the_status_that_kubectl_printed(output: Path, tmp_path: Path) -> None:
    status = json.loads((output / ".lmj" / "status.json").read_text())
    for file in (output / ".lmj").iterdir():
        file.unlink()
    without = read_run(output, None, [])
    assert (without.status, without.name, len(without.records)) == (None, "out", 3)
    told = tmp_path / "lmj.json"
    for value in (JOB | {"status": status}, {"kind": "List", "items": [JOB | {"status": status}]}):
        told.write_text(json.dumps(value))
        run = read_run(output, told, [])
        assert run.status is not None
        assert (run.name, run.status.migrations, run.job is not None) == ("tiny", 1, True)
    told.write_text(json.dumps(status))
    assert read_run(output, told, []).status is not None


def test_a_job_file_leads_to_its_folder(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB))
    assert read_run(file, None, ["spec.output.path=out"]).steps == 3


def test_lines_that_say_nothing_are_counted(output: Path) -> None:
    lines = [
        b'{"step": 4, "loss": 0.1, "time": 1e9}',
        b'{"step": true, "loss": 0.1}',
        b'{"step": 5}',
        b'{"step": 6, "loss": ' + b"9" * 5000 + b"}",
        b'{"step": 7, "loss": ' + b"9" * 400 + b"}",
        b'{"step": 1e400, "loss": 1}',
        b"[" * 100_000,
        b"\xff",
        b'{"step": 8, "lo',
    ]
    with (output / "metrics.jsonl").open("ab") as file:
        file.write(b"\n".join(lines))
    run = read_run(output, None, [])
    assert ([record.step for record in run.records], run.unread) == ([1, 2, 3, 4, 7], 7)


def test_how_many_replicas_took_a_step_is_read(output: Path) -> None:
    told = [b"1", b"2", b"0", b"-1", b"true", b"1.5", b"null", b"99999999", b'"2"']
    lines = [b'{"step": %d, "loss": 0.5, "replicas": %s}' % (step, value) for step, value in enumerate(told, 1)]
    (output / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert [record.replicas for record in read_run(output, None, []).records] == [1, 2, *[None] * 7]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (".lmj/status.json", "{", "not JSON (line 1, column 2"),
        (".lmj/status.json", '{"phase": "Odd"}', "phase: Input should be"),
        (".lmj/status.json", '{"new\x1b\\u001b": 1}', "not JSON"),
        (".lmj/status.json", '{"new\\u001b": 1}', "new?: Extra inputs"),
        (".lmj/status.json", '{"restarts": 1' + "0" * 400 + "}", "beyond"),
        (".lmj/status.json", "null", "holds null"),
        (".lmj/job.json", "[]", "not a job"),
        ("evaluation.json", "{}", "not a list of evaluations"),
        ("evaluation.json", "[1]", "0: Input should be"),
        ("evaluation.json", "[" * 100_000, "nested too deep"),
    ],
)
def test_bad_files_are_one_line(output: Path, name: str, text: str, says: str) -> None:
    (output / name).write_text(text)
    with pytest.raises(CommandError) as raised:
        read_run(output, None, [])
    assert (raised.value.code, len(raised.value.lines)) == (2, 1)
    assert raised.value.lines[0].startswith(str(output / name))
    assert says in raised.value.lines[0]
    assert raised.value.lines[0].isprintable()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file"),
        ("[]", "not what kubectl get lmj NAME -o json prints"),
        ('{"kind": "Pod"}', "holds a 'Pod'"),
        ('{"kind": "List", "items": []}', "holds 0 objects"),
    ],
)
def test_a_status_that_is_none(output: Path, tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "lmj.json").write_text(text)
    with pytest.raises(CommandError, match=says):
        read_run(output, tmp_path / "lmj.json", [])


def test_mistakes_end_with_exit_code_2(output: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    told = lmj("empty", cwd=tmp_path)
    assert (told.returncode, told.stderr) == (
        2, b"error: empty: no job has run here: there is neither metrics.jsonl nor .lmj/status.json\n",
    )  # fmt: skip
    told = lmj("out", "-o", "nowhere/r.html", cwd=tmp_path)
    assert (told.returncode, told.stderr) == (2, b"error: nowhere/r.html: No such file or directory\n")


def test_checkpoints_in_a_folder_of_their_own(output: Path, tmp_path: Path) -> None:
    elsewhere = (output / "checkpoints").rename(tmp_path / "elsewhere")
    job = JOB | {"spec": JOB["spec"] | {"checkpoint": {"path": str(elsewhere)}}}
    (output / ".lmj" / "job.json").write_text(json.dumps(job))
    found = read_run(output, None, []).checkpoints
    assert [(c.step, c.size, c.best, c.problem is None) for c in found] == [(2, 1500, True, True), (3, 0, False, False)]
