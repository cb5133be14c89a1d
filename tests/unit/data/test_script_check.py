"""What is found wrong with a script before anything is started for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.check import check_command, run
from lmj_trainer.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a script and a package in it."""
    (tmp_path / "train.py").write_text("print('must not be run')\nraise SystemExit(7)\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise SystemExit(7)\n")
    return tmp_path


def job(folder: Path, *args: str, **command: Any) -> LiveMigrationJob:
    spec = {
        "strategy": "Command",
        "command": {"args": list(args), "workingDir": str(folder), **command},
        "dataParallel": {"replicas": 2},
        "output": {"path": str(folder / "out")},
    }
    return LiveMigrationJob.model_validate({"metadata": {"name": "script"}, "spec": spec})


def problem(job: LiveMigrationJob) -> str:
    with pytest.raises(UserError) as caught:
        check_command(job)
    return str(caught.value)


def test_a_good_script_in_numbers_and_it_was_not_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    summary = check_command(job(folder, "train.py", "--epochs", "3", processesPerNode=4))
    assert summary.lines == [f"script: {folder}/train.py, in {folder}", "processes: 8 (2 x 4)"]
    assert check_command(job(folder, "-m", "pack.train")).script == "pack.train"
    assert check_command(job(folder, "-m", "json.tool")).script == "json.tool"
    assert check_command(job(folder, "accelerate", "launch")).script == "accelerate"
    assert capfd.readouterr() == ("", "")
    assert not (folder / "out").exists()


def test_a_script_that_is_not_there_or_no_python_is_told_with_its_line(folder: Path) -> None:
    assert problem(job(folder, "tran.py")) == f"command.args: {folder}/tran.py cannot be read: No such file or directory"
    (folder / "bad.py").write_text("import os\nif True print(1)\n")
    assert problem(job(folder, "bad.py")) == f"command.args: {folder}/bad.py, line 2: invalid syntax"
    (folder / "null.py").write_bytes(b"x = 1\0\n")
    assert problem(job(folder, "null.py")).startswith(f"command.args: {folder}/null.py")
    assert problem(job(folder, "-m", "no_such_pack.train")) == (
        f"command.args: there is no module no_such_pack, neither in {folder} nor among what is installed"
    )


def test_a_warning_of_the_compiler_is_not_the_checks(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "odd.py").write_text("x = '\\d'\nassert (x, 'always')\n")
    check_command(job(folder, "odd.py"))
    assert capfd.readouterr() == ("", "")


def test_folders_that_cannot_be_written_are_told(folder: Path) -> None:
    made = job(folder, "train.py", checkpoints="/dev/null/saved")
    assert problem(made).startswith("command.checkpoints /dev/null/saved cannot be written")


def test_the_command_tells_it_as_text_and_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "job.json"
    file.write_text(job(folder, "train.py").to_json())
    assert run(["--job", str(file)]) == 0
    assert capsys.readouterr().out == f"script: {folder}/train.py, in {folder}\nprocesses: 2 (2 x 1)\n"
    assert run(["--job", str(file), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "script": f"{folder}/train.py",
        "workingDir": str(folder),
        "replicas": 2,
        "processes": 2,
    }
    file.write_text(job(folder, "no.py").to_json())
    assert run(["--job", str(file)]) == 2
    assert capsys.readouterr().err.startswith("error: command.args: ")
