"""Commands of ``lmj`` about a job that runs a user's script."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lmj_api.layout import Layout
from lmj_api.protocol import USER_ERROR, Progress
from lmj_api.spec import JobSpec, LiveMigrationJob
from lmj_api.status import JobStatus, Phase, RankStatus
from lmj_operator.backend.local.aside import move_aside
from lmj_operator.backend.local.pod import GRACE_SECONDS, grace_of
from lmj_operator.backend.local.store import RunStore
from lmj_operator.backend.local.threads import with_threads
from lmj_operator.cli import earlier as module
from lmj_operator.cli.earlier import Wish, continued, earlier
from lmj_operator.cli.ended import Ended, exit_code, summary
from lmj_operator.cli.errors import BAD_INPUT, FAILED, CommandError
from lmj_operator.cli.lines import progress_line
from lmj_operator.cli.main import app
from lmj_operator.cli.report.page import page
from lmj_operator.cli.report.run import Run
from lmj_operator.cli.scaling import check_replicas


def document(folder: Path, *args: str, **spec: Any) -> dict[str, Any]:
    command = {"args": list(args) or ["train.py"], "checkpoints": "out/saved"}
    parts = {"strategy": "Command", "command": command, "output": {"path": "out"}, **spec}
    return {"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "script"}, "spec": parts}


def job(folder: Path, *args: str, **spec: Any) -> LiveMigrationJob:
    from lmj_api.load import load_job

    return load_job(document(folder, *args, **spec), base=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a script, and the file of its job."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document(tmp_path)))
    return tmp_path


def ran(made: LiveMigrationJob, phase: Phase) -> Layout:
    """A run of ``made`` that came to ``phase``."""
    layout = Layout.of(made.spec)
    layout.run.mkdir(parents=True)
    store = RunStore(layout.run)
    store.write_job(made)
    store.lock_file.touch()
    at = Progress(step=5, steps=10, epoch=0.0)
    store.write_status(JobStatus(phase=phase, message="m", progress=at, ranks=[RankStatus(rank=0, state="Running")]))
    return layout


@pytest.mark.integration
def test_validate_tells_of_the_script(folder: Path) -> None:
    told = CliRunner().invoke(app, ["validate", str(folder / "job.yaml"), "-o", "json"])
    assert (told.exit_code, json.loads(told.stdout)) == (
        0,
        {
            "valid": True,
            "name": "script",
            "notices": [],
            "check": [f"script: {folder}/train.py, in {folder}", "processes: 1 (1 x 1)"],
        },
    )


def test_validate_tells_that_the_script_is_missing_in_one_line(folder: Path) -> None:
    (folder / "train.py").rename(folder / "trian.py")
    told = CliRunner().invoke(app, ["validate", str(folder / "job.yaml"), "-o", "json"])
    line = f"{folder}/job.yaml: spec.command.args: there is no file {folder}/train.py; did you mean trian.py?"
    assert json.loads(told.stdout) == {"valid": False, "errors": [line]}
    assert isinstance(told.exception, CommandError)
    assert told.exception.code == BAD_INPUT


def test_status_list_and_report_of_a_script(folder: Path) -> None:
    ran(job(folder, dataParallel={"replicas": 2, "maxReplicas": 4}), Phase.SUCCEEDED)
    status = CliRunner().invoke(app, ["status", str(folder / "job.yaml")])
    assert status.exit_code == 0
    assert status.stdout.splitlines()[:2] == ["Succeeded: m", "step 5/10"]
    told = CliRunner().invoke(app, ["list", str(folder)])
    assert told.exit_code == 0
    assert "script  Succeeded  5/10" in told.stdout
    report = CliRunner().invoke(app, ["report", str(folder / "job.yaml"), "-o", "-"])
    assert report.exit_code == 0
    assert "<dt>Script</dt><dd>train.py</dd>" in report.stdout
    assert "<dt>Replicas</dt><dd>2, from 1 to 4; 1 process each</dd>" in report.stdout
    assert "<dt>Model</dt>" not in report.stdout


def test_a_report_does_not_show_arguments_which_may_be_secret(folder: Path) -> None:
    made = job(folder, "-m", "pack.train", "--token", "hf_secret")
    html = page(Run("script", made, None, (), (), ()), 1.8e9)
    assert "<dt>Script</dt><dd>pack.train</dd>" in html
    assert "hf_secret" not in html


def test_progress_without_epochs_has_none() -> None:
    assert progress_line(Progress(step=5, steps=10, epoch=0.0, loss=0.5), Phase.RUNNING) == "step 5/10, loss 0.5000"
    assert progress_line(Progress(step=0, steps=10, epoch=0.0), Phase.RUNNING) == "step 0/10, epoch 0.00"


def test_the_exit_code_of_a_script_means_nothing_else_than_that_it_failed(tmp_path: Path) -> None:
    rank = RankStatus(rank=0, state="Failed", exit_code=USER_ERROR, exit_message="no")
    status = JobStatus(phase=Phase.FAILED, message="no", ranks=[rank])
    assert (exit_code(status), exit_code(status, stateless=True)) == (BAD_INPUT, FAILED)
    assert Ended(status, Layout(tmp_path, tmp_path), 1.0, stateless=True).code == FAILED


def test_the_end_of_a_script_names_its_output_and_no_model(tmp_path: Path) -> None:
    result, lines = summary(JobStatus(phase=Phase.SUCCEEDED), Layout(tmp_path, tmp_path), 61.0, stateless=True)
    assert (result["model"], result["output"]) == (None, str(tmp_path))
    assert lines[1:] == [f"output: {tmp_path}"]


def test_threads_are_not_settled_for_a_script(folder: Path) -> None:
    made = job(folder)
    assert with_threads(made, None, 8) == (made, None)


def test_it_goes_on_with_other_arguments_until_it_has_finished(folder: Path) -> None:
    first, second = job(folder, "train.py", "--epochs", "1"), job(folder, "train.py", "--epochs", "2")
    layout = ran(first, Phase.SUSPENDED)
    found = earlier(second, layout, Wish.RESUME, finished=False)
    assert found is not None
    assert not found.changes
    with pytest.raises(CommandError) as caught:
        earlier(second, layout, Wish.RESUME, finished=True)
    assert "(command.args train.py, --epochs, 1 → train.py, --epochs, 2)" in caught.value.lines[0]
    assert "--continue" in caught.value.lines[0]
    assert "--fresh" in caught.value.lines[0]


def test_continue_starts_a_finished_script_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = job(folder, "train.py", "--epochs", "1"), job(folder, "train.py", "--epochs", "2")
    found = earlier(second, ran(first, Phase.SUCCEEDED), Wish.CONTINUE, finished=True)
    assert found is not None
    checked = []

    async def check(made: LiveMigrationJob, say: object) -> str:
        checked.append(made)
        return ""

    monkeypatch.setattr(module, "check_job", check)
    made, line = asyncio.run(continued(second, found, print))
    assert made == second
    assert checked == [second]
    assert line.startswith("goes on (command.args train.py, --epochs, 1 → train.py, --epochs, 2): the script is started again")


def test_a_folder_of_a_trained_model_is_refused_to_a_script(folder: Path) -> None:
    spec = {"model": {"scratch": {}}, "dataset": {"source": "/d.csv", "text": ["t"], "label": "l"}, "output": {"path": "/o"}}
    trained = LiveMigrationJob.model_validate({"metadata": {"name": "script"}, "spec": spec})
    layout = ran(job(folder), Phase.SUSPENDED)
    layout.metrics.write_text("{}\n")
    layout.trained.write_text(trained.to_json())
    with pytest.raises(CommandError, match="strategy Pipeline → Command"):
        earlier(job(folder), layout, Wish.RESUME, finished=False)


def test_to_start_over_moves_the_scripts_checkpoints_and_nothing_else_of_it(folder: Path) -> None:
    layout = ran(job(folder), Phase.SUCCEEDED)
    saved = layout.output / "saved"
    for name in ("checkpoint-5", "checkpoint-10", "runs"):
        (saved / name).mkdir(parents=True)
    (layout.output / "notes.txt").touch()
    assert move_aside(layout, "script") == layout.output / "earlier-1"
    assert sorted(path.name for path in saved.iterdir()) == ["earlier-1", "runs"]
    assert sorted(path.name for path in (saved / "earlier-1").iterdir()) == ["checkpoint-10", "checkpoint-5"]
    assert (layout.output / "notes.txt").exists()
    assert not (layout.run / "job.json").exists()


@pytest.mark.parametrize(("saves", "seconds"), [(30.0, GRACE_SECONDS), (200.0, 410.0)])
def test_an_agent_here_gives_a_script_its_time(folder: Path, saves: float, seconds: float) -> None:
    command = {"args": ["train.py"], "saveSeconds": saves}
    assert grace_of(job(folder, command=command).spec) == seconds


def test_a_job_on_a_cluster_is_scaled_as_far_as_max_replicas() -> None:
    spec: dict[str, Any] = {"strategy": "Command", "dataParallel": {"shards": 1, "replicas": 2}}
    check_replicas(spec, 9)
    spec["dataParallel"]["maxReplicas"] = 4
    check_replicas(spec, 4)
    with pytest.raises(CommandError, match="replicas 5 is more than maxReplicas 4"):
        check_replicas(spec, 5)
    with pytest.raises(CommandError, match="more than shards 1"):
        check_replicas({"dataParallel": {"shards": 1, "replicas": 1}}, 2)


def test_lmj_job_of_a_script_is_the_file_that_it_is_of(folder: Path) -> None:
    import lmj

    made = lmj.Job.from_yaml(folder / "job.yaml")
    assert yaml.safe_load(made.to_yaml()) == document(folder)
    scaled = made.scaled(replicas=3)
    assert scaled.to_object()["spec"]["dataParallel"] == {"replicas": 3}
    assert isinstance(scaled, JobSpec)
    assert scaled.world_size == 3
    assert scaled.scaled(replicas=5).world_size == 5
    assert lmj.Job.from_object(scaled.to_object()).to_object() == scaled.to_object()
