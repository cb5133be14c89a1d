"""A job whose model and task are a class of the user's own: what its spec may say."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from lmj_api.identity import differences
from lmj_api.load import SpecError, load_job
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.checkpoint.identity import state_digest


def document(**spec: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "model": {"python": "my_task.py:MyTask"},
        "dataset": {"source": "rows.jsonl"},
        "output": {"path": "runs/x"},
    }
    for name, value in spec.items():
        whole[name] = {**whole.get(name, {}), **value}
    return {"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "own"}, "spec": whole}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "my_task.py").write_text("class MyTask: ...")
    return tmp_path


def load(folder: Path, *, here: bool = True, **spec: Any) -> LiveMigrationJob:
    return load_job(document(**spec), base=folder, here=here)


def test_the_file_is_found_beside_the_job_s_and_its_content_is_known(here: Path) -> None:
    model = load(here).spec.model
    assert model.python_file == (str(here / "my_task.py"), "MyTask")
    assert model.python_sha256 == hashlib.sha256(b"class MyTask: ...").hexdigest()
    again = load(here)
    assert LiveMigrationJob.model_validate_json(again.to_json()) == again


def test_on_a_cluster_nobody_reads_it() -> None:
    model = load(Path("/data"), here=False, model={"python": "tasks/my_task.py:MyTask"}).spec.model
    assert (model.python, model.python_sha256) == ("/data/tasks/my_task.py:MyTask", None)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            {"model": {"python": "my_tsk.py:MyTask"}},
            "spec.model.python: {}/my_tsk.py cannot be read: No such file or directory; did you mean my_task.py?",
        ),
        ({"model": {"python": "my_task.py"}}, "spec.model.python: 'my_task.py' does not match"),
        (
            {"model": {"python": "s3://b/my_task.py:MyTask"}},
            "spec.model.python: 's3://b/my_task.py:MyTask': s3:// cannot be read",
        ),
        ({"model": {"pythonSha256": "0" * 64}}, "spec.model.pythonSha256: {}/my_task.py has another content"),
        (
            {"model": {"python": None, "scratch": {}, "pythonSha256": "0" * 64}},
            "spec.model: pythonSha256 is of the file in python",
        ),
        ({"model": {"scratch": {}}}, "spec.model: set exactly one of source"),
        ({"model": {"python": None}}, "spec.model: set exactly one of source"),
        ({"model": {"task": "CausalLM"}}, "spec.model: task CausalLM: the class in python says what is learned"),
        ({"model": {"labels": ["a", "b"]}}, "spec.model: labels is for models of transformers"),
        ({"model": {"dropout": 0.1}}, "spec.model: dropout is for models of transformers"),
        ({"model": {"lora": {}}}, "spec.model: lora is for models of transformers"),
        ({"model": {"revision": "main"}}, "spec.model: revision is for models of transformers"),
        ({"dataset": {"text": ["a"]}}, "spec: dataset.text: the class in model.python gets all columns"),
        ({"dataset": {"label": "a"}}, "spec: dataset.label: the class in model.python gets all columns"),
        ({"dataset": {"packing": True}}, "spec: dataset.packing: the class in model.python gets all columns"),
        ({"dataset": {"mlmProbability": 0.2}}, "spec: dataset.mlmProbability: what is hidden of a row is up to the class"),
        ({"training": {"labelSmoothing": 0.1}}, "spec: training.labelSmoothing: the loss is that of the class"),
        ({"output": {"int8": True}}, "spec: output.int8 is for models of transformers: with model.python leave it out"),
        ({"training": {"groupByLength": True}}, "spec: training.groupByLength: rows of the class in model.python have no tokens"),
        (
            {"training": {"metricForBestModel": "Accuracy"}},
            "spec: training.metricForBestModel Accuracy: with model.python the weights with the smallest loss are the best",
        ),
    ],
)
def test_what_does_not_go_together(here: Path, spec: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(here, **spec)
    (told,) = str(caught.value).splitlines()
    assert told.startswith(line.format(here))


def test_another_content_is_another_training(here: Path, tmp_path: Path) -> None:
    old = load(here).spec
    (here / "my_task.py").write_text("class MyTask: 1")
    new = load(here).spec
    assert state_digest(new) != state_digest(old)
    assert [difference.path for difference in differences(old, new, finished=False)] == ["model.pythonSha256"]


def test_another_class_is_and_another_place_is_none(here: Path, tmp_path: Path) -> None:
    old, other = load(here).spec, load(here, model={"python": "my_task.py:Other"}).spec
    assert [difference.path for difference in differences(old, other, finished=False)] == ["model.python"]
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "my_task.py").write_text("class MyTask: ...")
    assert state_digest(load(moved).spec) == state_digest(old)
    assert differences(old, load(moved).spec, finished=False) == ()


def test_a_job_without_a_class_differs_from_one_with(here: Path) -> None:
    scratch = load(here, model={"python": None, "scratch": {}}, dataset={"text": ["a"], "label": "b"}).spec
    assert "model.python" in [difference.path for difference in differences(scratch, load(here).spec, finished=False)]
