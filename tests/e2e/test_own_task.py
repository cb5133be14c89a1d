"""The example of a class of one's own by the real command: disturbed as any job may be, changed, and wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faults import last_step
from jobs import DEADLINE, Job, wait_until
from moving import SETTINGS, assert_as_undisturbed, leave, migrate
from test_chaos import running

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-task"


class OwnJob(Job):
    """The example, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("runs", "__pycache__"))
        self.folder, self.file, self.output = folder, folder / "job.yaml", folder / "runs" / "own-task"
        self.metrics = self.output / "metrics.jsonl"

    def change(self, old: str, new: str) -> int:
        """Put ``new`` in the place of ``old`` in the class's file; the line where it is."""
        path = self.folder / "my_task.py"
        content = path.read_text()
        assert content.count(old) == 1
        path.write_text(content.replace(old, new))
        return content[: content.index(old)].count("\n") + 1


@pytest.mark.slow
def test_the_example_runs_as_it_is(tmp_path: Path) -> None:
    job = OwnJob(tmp_path / "job")
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(job.losses()) == 8 * 50
    test = next(each for each in json.loads((job.output / "evaluation.json").read_text()) if each["split"] == "test")
    assert test["accuracy"] > 0.9
    assert 0 < test["metrics"]["certainty"] <= 1
    assert "lmj predict" not in done.stdout, "there is no text to predict"
    assert (job.output / "model" / "my_task.py").is_file()
    command = [sys.executable, "-m", "lmj_operator.cli.main", "report", str(job.output)]
    done_report = subprocess.run(command, capture_output=True, timeout=DEADLINE, check=False, cwd=tmp_path)
    assert done_report.returncode == 0, done_report.stderr


def test_it_moves_loses_workers_and_goes_on(tmp_path: Path) -> None:
    job = OwnJob(tmp_path / "disturbed")
    with running(job, 100_000, *SETTINGS) as process:
        wait_until(lambda: last_step(job) > 3, process)
        told = migrate(job, 1, 0)
        assert {(i["rank"], i["kind"], i["stepsLost"]) for i in told["incidents"]} == {(0, "Moved", 0), (1, "Moved", 0)}
        for rank in (0, 1):
            restarts = job.status()["restarts"]
            os.kill(job.worker(rank), signal.SIGKILL)
            wait_until(
                lambda before=restarts: job.status()["restarts"] > before and job.status()["phase"] == "Running",  # type: ignore[misc]
                process,
            )
        leave(job, process, last_step(job) + 10)
    assert job.status()["stepsLost"] == 0
    assert_as_undisturbed(job, OwnJob, tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_changed_file_is_another_job(tmp_path: Path) -> None:
    job = OwnJob(tmp_path / "job")
    assert job.run("--set", "training.maxSteps=5").returncode == 0
    job.change("nn.Dropout(0.1)", "nn.Dropout(0.2)")
    done = job.run("--set", "training.maxSteps=5")
    assert done.returncode == 2
    (told,) = done.stderr.splitlines()
    assert "has the results of another job (model.pythonSha256 " in told
    assert job.run("--set", "training.maxSteps=5", "--fresh").returncode == 0


def test_an_error_in_it_is_final_and_says_where(tmp_path: Path) -> None:
    """In a row that no check looks at."""
    job = OwnJob(tmp_path / "job")
    line = job.change(
        "signals = torch", 'assert all(max(row["readings"]) < 2.35 for row in rows), "a high one"\n        signals = torch'
    )
    done = job.run()
    assert done.returncode == 2, done.stdout + done.stderr
    said = f"{job.folder / 'my_task.py'}:{line}: MyTask.collate: AssertionError: a high one"
    assert [text for text in done.stderr.splitlines() if said in text], done.stderr
    status = job.status()
    assert (status["phase"], status["restarts"]) == ("Failed", 0)
    assert said in status["message"]


def test_an_error_that_two_rows_show_starts_nothing(tmp_path: Path) -> None:
    job = OwnJob(tmp_path / "job")
    line = job.change("F.cross_entropy(scores, shapes)", "F.cross_entropy(scores, shape)")
    done = job.run()
    assert done.returncode == 2
    assert done.stderr == f"error: {job.folder / 'my_task.py'}:{line}: MyTask.loss: NameError: name 'shape' is not defined\n"
    assert not (job.output / "logs").exists()
