"""Jobs that are built in Python: what a file would say, and mistakes as its loader tells them."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import lmj
from lmj.words import told
from lmj_api.load import load_job

MODEL = {"scratch": {"layers": 2, "hidden_size": 32, "heads": 2}}
DATASET = {"source": "data.csv", "text": ["text"], "label": "label"}


def job(**fields: Any) -> lmj.Job:
    return lmj.Job(**{"name": "tiny", "model": MODEL, "dataset": DATASET, "output": {"path": "out"}, **fields})


def lines(**fields: Any) -> tuple[str, ...]:
    with pytest.raises(lmj.JobError) as told:
        job(**fields)
    return told.value.lines


def test_mappings_models_paths_and_enumerations_say_the_same() -> None:
    typed = lmj.Job(
        name="tiny",
        model=lmj.Model(scratch=lmj.Scratch(layers=2, hidden_size=32, heads=2), task=lmj.Task.SEQUENCE_CLASSIFICATION),
        dataset=lmj.Dataset(source="data.csv", text=["text"], label="label"),
        training=lmj.Training(schedule=lmj.LearningRateSchedule.COSINE, learning_rate=1e-3),
        output=lmj.Output(path="out"),
    )
    plain = job(
        model={**MODEL, "task": "SequenceClassification"},
        dataset={**DATASET, "source": Path("data.csv")},
        training={"schedule": lmj.LearningRateSchedule.COSINE, "learningRate": 1e-3},
    )
    assert typed == plain
    assert typed.to_object()["spec"] == {
        "model": {"scratch": {"layers": 2, "hiddenSize": 32, "heads": 2}, "task": "SequenceClassification"},
        "dataset": {"source": "data.csv", "text": ["text"], "label": "label"},
        "training": {"schedule": "Cosine", "learningRate": 1e-3},
        "output": {"path": "out"},
    }, "what was not set is not said"


def test_a_job_is_its_file(tmp_path: Path) -> None:
    template = {"metadata": {"labels": {"someKey": "a"}}, "spec": {"hostNetwork": True}}
    made = job(
        template=template, training={"max_steps": 5}, labels={"queue": "night"}, annotations={"why": "ä"}, namespace="team"
    )
    assert made.to_object()["spec"]["template"] == template, "what is not ours stays as it is"
    file = tmp_path / "job.yaml"
    file.write_text(made.to_yaml())
    read = lmj.Job.from_yaml(file)
    assert read.to_object() == made.to_object() == json.loads(made.to_json())
    assert (read.labels, read.annotations, read.namespace) == ({"queue": "night"}, {"why": "ä"}, "team")
    changed = lmj.Job.from_yaml(file, ["training.maxSteps=7", "metadata.name=other"])
    assert (changed.name, changed.labels, changed.training.max_steps) == ("other", {"queue": "night"}, 7)
    assert pickle.loads(pickle.dumps(read)) == read


def test_relative_paths_are_of_the_folder_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "job.yaml").write_text(job().to_yaml())
    monkeypatch.chdir(tmp_path)
    made, read = job(), lmj.Job.from_yaml("there/job.yaml")
    monkeypatch.chdir("/")
    assert (made.folder, read.folder) == (tmp_path, tmp_path / "there")
    assert made.here().spec.dataset.source == str(tmp_path / "data.csv")
    assert read.here().spec.output.path == str(tmp_path / "there" / "out")
    assert read.output.path == read.to_object()["spec"]["output"]["path"] == "out", "a cluster has other folders"
    assert read.scaled(1, 2).folder == read.folder


def test_a_job_is_as_the_loader_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = job(training={"epochs": 2}, recovery={"rules": []})
    loaded = load_job(yaml.safe_load(made.to_yaml()), base=tmp_path)
    assert made.here() == loaded
    assert made.training == loaded.spec.training


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"training": {"batch_size": "16"}}, "training.batch_size: '16' is text; a whole number is needed"),
        ({"training": {"batch_sise": 16}}, "training.batch_sise: unknown field; did you mean batch_size?"),
        (
            {"training": {"batch_size": 3}, "pipeline": {"micro_batches": 2}},
            "training.batch_size 3 is not a multiple of pipeline.micro_batches 2",
        ),
        ({"name": "Tiny"}, "name: 'Tiny' does not match ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$ (lower-case letters, digits and '-')"),
        ({"name": None}, "name: missing (Name of the job; pods are called after it.)"),
        ({"dropout": 0.1}, "dropout: unknown field; did you mean model.scratch.dropout?"),
        ({"labels": {"a": 1}}, "labels.a: Input should be a valid string"),
        (
            {"model": {}},
            "model: set exactly one of source (pretrained weights), scratch (random weights) and python (a class of your own)",
        ),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate: nan is no finite number"),
        ({"template": {"a": {1, 2}}}, "template.a: {1, 2} is read as a set; put it in quotes"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_the_names_of_python(fields: dict[str, Any], says: str) -> None:
    (line,) = lines(**fields)
    assert line.endswith(says)


def test_several_mistakes_have_a_line_each() -> None:
    assert len(lines(training={"epochs": 0, "batch_size": 0})) == 2


def test_a_files_mistake_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(job().to_yaml().replace("hiddenSize", "hiddenSise"))
    with pytest.raises(lmj.JobError) as told:
        lmj.Job.from_yaml(file)
    assert told.value.lines == (f"{file}: spec.model.scratch.hiddenSise: unknown field; did you mean hiddenSize?",)
    with pytest.raises(lmj.JobError, match="No such file"):
        lmj.Job.from_yaml(tmp_path / "none.yaml")
    with pytest.raises(lmj.JobError, match=r"^dataset.source: 'ftp://a/b.csv': ftp:// cannot be read"):
        job(dataset={**DATASET, "source": "ftp://a/b.csv"}).here()


def test_a_job_is_scaled_or_cannot_be() -> None:
    made = job(pipeline={"stages": 1, "micro_batches": 2}, data_parallel={"shards": 2}, training={"batch_size": 4})
    scaled = made.scaled(2, 2)
    assert (scaled.world_size, scaled.name) == (4, "tiny")
    assert made.scaled().to_object() == made.to_object()
    assert scaled.scaled(1, 1).to_object() == made.scaled(1).to_object()
    with pytest.raises(lmj.JobError, match="replicas 3 is more than shards 2"):
        made.scaled(replicas=3)


def test_what_an_api_server_has_is_read_though_it_is_of_a_newer_version() -> None:
    body = job(labels={"a": "b"}).to_object()
    body["metadata"] |= {"uid": "11111111-2222-3333-4444-555555555555", "managedFields": []}
    body["spec"]["training"] = {"batchSize": 8, "later": 1}
    body["status"] = {"phase": "Running"}
    assert lmj.Job.from_object(body) == job(labels={"a": "b"}, training={"batch_size": 8})


def test_messages_of_the_command_are_said_in_the_words_of_python() -> None:
    assert told("spec.training.batchSize 3: choose another output.path, or --fresh to start over") == (
        "training.batch_size 3: choose another output.path, or fresh=True to start over"
    )
    assert told("rank 1 is InSync with quickstart-r0-1: MyTask") == "rank 1 is InSync with quickstart-r0-1: MyTask"


@pytest.mark.integration
def test_to_import_it_takes_no_library_that_is_slow() -> None:
    slow = ("torch", "transformers", "kubernetes", "aiohttp", "rich", "lmj_trainer")
    program = f"import lmj, sys; print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
