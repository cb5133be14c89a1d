"""``python -m lmj_trainer checkpoints``."""

import json
import sys
from pathlib import Path

import pytest
from tests.on_disk import commit_manifest, file_digest, make_folder

from lmj_api.manifest import Manifest, ManifestFile
from lmj_trainer.__main__ import main


@pytest.fixture
def output(tmp_path: Path) -> Path:
    for step in (10, 20):
        folder = make_folder(tmp_path / "checkpoints", step, 3)
        path = folder / "rank-0.safetensors"
        path.write_bytes(b"x" * 2500)
        file = ManifestFile(name=path.name, size=2500, xxh128=file_digest(path))
        commit_manifest(
            folder, Manifest(job="j", view=3, step=step, epoch=0.5, state_digest="s", seconds=1, best=step == 10, files=[file])
        )
    (tmp_path / "checkpoints" / "step-000000020-v3" / "rank-0.safetensors").write_bytes(b"y" * 2500)
    return tmp_path


def test_table(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(output)]) == 0
    header, newest, older = capsys.readouterr().out.splitlines()
    assert header.split() == ["STEP", "EPOCH", "TIME", "SIZE", "FILES", "BEST", "STATE"]
    assert newest.startswith("20 ")
    assert newest.endswith("altered")
    assert older.split()[:2] == ["10", "0.50"]
    assert older.split()[3:] == ["2.5", "KB", "1", "best", "verified"]


def test_all_are_verified_and_not_only_what_a_job_would_load(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(output / "checkpoints", 5, 3)
    (folder / "rank-0.safetensors").write_bytes(b"y" * 2500)
    of_another = ManifestFile(name="rank-0.safetensors", size=2500, xxh128="0" * 32)
    commit_manifest(folder, Manifest(job="j", view=3, step=5, epoch=0.5, state_digest="s", seconds=1, files=[of_another]))
    assert main(["checkpoints", str(output)]) == 0
    *_, good, oldest = capsys.readouterr().out.splitlines()
    assert good.endswith("verified")
    assert oldest.startswith("5 ")
    assert oldest.endswith("altered")


def test_json(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(output / "checkpoints"), "-o", "json"]) == 0
    newest, older = json.loads(capsys.readouterr().out)
    assert newest["problem"]
    assert older == older | {"step": 10, "best": True, "problem": None, "view": 3, "size": 2500, "epoch": 0.5}
    assert older["files"][0]["name"] == "rank-0.safetensors"


def test_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no checkpoints\n"


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for argv, part in (
        (["checkpoints", str(tmp_path / "absent")], "no such folder"),
        (["checkpoints", str(tmp_path / "file")], "is a file"),
        (["chekpoints"], "did you mean checkpoints?"),
        ([], "no command given"),
    ):
        assert main(argv) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert part in error
        assert error.count("\n") == 1


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "agent" in capsys.readouterr().out


@pytest.mark.integration
def test_needs_no_torch() -> None:
    import subprocess

    code = "import sys, lmj_trainer.__main__ as m; m.main(['checkpoints', sys.argv[1]]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True, timeout=60)
