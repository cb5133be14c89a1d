"""``lmj.run`` with real processes: the same losses as the command's, Ctrl-C, and the notebook of the examples."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import DEADLINE, Job, wait_until
from undisturbed_fixture import STEPS, Undisturbed

import lmj

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = "import sys, lmj; lmj.run(sys.argv[1])"
NOTEBOOK_SECONDS = 400.0


@pytest.fixture(scope="module")
def undisturbed(undisturbed_of: Callable[[int], Undisturbed]) -> Job:
    """What the command trained."""
    return undisturbed_of(STEPS).job


def start(job: Job) -> "subprocess.Popen[str]":
    """A script that runs the job."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, str(job.file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=job.folder, env=environment)


def test_a_run_from_python_has_the_losses_of_the_command(undisturbed: Job, tmp_path: Path) -> None:
    job = Job(tmp_path)
    result = lmj.run(lmj.Job.from_yaml(job.file), progress=False)
    assert result.losses() == job.losses() == undisturbed.losses()
    assert (result.phase, result.steps, result.steps_lost, result.incidents) == (lmj.Phase.SUCCEEDED, STEPS, 0, ())
    assert result.metrics["accuracy"] > 0.9
    assert result.model is not None
    assert (result.model / "config.json").is_file()
    assert result.output == job.output
    again = lmj.run(job.file, progress=False)
    assert (again.seconds, again.metrics) == (None, result.metrics), "it had succeeded already"
    with pytest.raises(lmj.JobError, match=r"choose another output.path, or fresh=True to start over"):
        lmj.run(lmj.Job.from_yaml(job.file, ["training.seed=1"]), progress=False)
    with pytest.raises(lmj.JobError, match=r"no-such-column"):
        lmj.run(lmj.Job.from_yaml(job.file, ["dataset.label=no-such-column", f"output.path={tmp_path / 'other'}"]))
    assert not job.processes()


def test_ctrl_c_takes_a_checkpoint_and_the_same_call_goes_on(undisturbed: Job, tmp_path: Path) -> None:
    job = Job(tmp_path)
    process = start(job)
    job.wait_for_step(50, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, out + err
    assert "lmj.errors.RunInterrupted: " in err
    assert "SIGINT: takes a checkpoint and leaves, once more to leave at once; the same call resumes" in out
    wait_until(lambda: not job.processes(), seconds=5)
    assert job.status()["phase"] == "Suspended"
    assert job.status()["checkpoint"]["step"] == job.status()["progress"]["step"]

    process = start(job)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert job.losses() == undisturbed.losses()
    assert job.status()["stepsLost"] == 0


def test_ctrl_c_twice_leaves_at_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    process = start(job)
    job.wait_for_step(20, process)
    os.kill(job.worker(1), signal.SIGSTOP)  # so that no checkpoint can be taken
    process.send_signal(signal.SIGINT)
    time.sleep(1.2)  # a second press a second later is another wish
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert "left at once; the same call goes on from the newest checkpoint" in err
    wait_until(lambda: not job.processes(), seconds=5)


def test_the_notebook_of_the_examples_runs(tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), "it is kept without outputs"
    shutil.copytree(EXAMPLES / "data", tmp_path / "data")
    shutil.copy(EXAMPLES / "notebook.ipynb", tmp_path)
    command = [sys.executable, str(Path(__file__).with_name("run_notebook.py")), "notebook.ipynb"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=NOTEBOOK_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = next(line for line in done.stdout.splitlines() if line.startswith("{'loss'"))
    assert json.loads(metrics.replace("'", '"'))["accuracy"] > 0.9, done.stdout
    assert "'label': 'positive'" in done.stdout
    assert "training.batch_sise: unknown field; did you mean batch_size?" in done.stdout
