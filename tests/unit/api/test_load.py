"""From a document to a job: what is accepted, and the line for everything that is not."""

import copy
import datetime
import re
from pathlib import Path
from typing import Any

import pytest

from lmj_api.layout import Layout
from lmj_api.load import SpecError, load_job
from lmj_api.problems import MOST
from lmj_api.view import MOST_RANKS

BASE = Path("/jobs")


def document(**spec: Any) -> dict[str, Any]:
    """A smallest job, with parts of its spec replaced or (mappings) extended."""
    whole: dict[str, Any] = {
        "model": {"scratch": {}},
        "dataset": {"source": "reviews.csv", "text": ["review"], "label": "label"},
        "output": {"path": "runs/x"},
    }
    for name, value in spec.items():
        whole[name] = {**whole.get(name, {}), **value} if isinstance(value, dict) else value
    return {"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "quick"}, "spec": whole}


def load(doc: object, *sets: str, base: Path = BASE) -> Any:
    return load_job(doc, base=base, sets=sets)


def problem(doc: object, *sets: str) -> str:
    with pytest.raises(SpecError) as caught:
        load(doc, *sets)
    return str(caught.value)


def test_the_smallest_job_gets_every_default() -> None:
    spec = load(document()).spec
    assert (spec.pipeline.stages, spec.training.batch_size, spec.checkpoint.every_steps) == (2, 32, 100)


def test_the_document_is_left_as_it_was() -> None:
    doc = document(training={"learningRate": "5e-5"})
    before = copy.deepcopy(doc)
    load(doc, "training.batchSize=16", "model.scratch.layers=2")
    assert doc == before


def test_other_metadata_and_a_status_are_allowed() -> None:
    doc = document() | {"metadata": {"name": "quick", "labels": {"a": "b"}}, "status": {"phase": "Running"}}
    assert load(doc).metadata.name == "quick"


@pytest.mark.parametrize(("stages", "replicas"), [(4, 256), (1, 1024), (64, 16)])
def test_a_job_may_have_a_thousand_ranks(stages: int, replicas: int) -> None:
    parts = {"shards": 1024, "replicas": replicas}
    spec = {"pipeline": {"stages": stages, "microBatches": 1024}, "training": {"batchSize": 1024}, "dataParallel": parts}
    assert load(document(**spec)).spec.world_size == MOST_RANKS


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"training": {"learnRate": 1}}, "spec.training.learnRate: unknown field; did you mean learningRate?"),
        ({"training": {"batch_size": 4}}, "spec.training.batch_size: unknown field; did you mean batchSize?"),
        ({"training": {"batchsize": 4}}, "spec.training.batchsize: unknown field; did you mean batchSize?"),
        ({"model": {"scratch": {"layer": 2}}}, "spec.model.scratch.layer: unknown field; did you mean layers?"),
        ({"learningRate": 1}, "spec.learningRate: unknown field; did you mean spec.training.learningRate?"),
        ({"seed": 1}, "spec.seed: unknown field; did you mean spec.training.seed?"),
        ({"training": {"batchSize": "16"}}, "spec.training.batchSize: '16' is text; a whole number is needed"),
        ({"training": {"batchSize": 16.5}}, "spec.training.batchSize: a whole number is needed, not 16.5"),
        ({"training": {"epochs": True}}, "spec.training.epochs: a whole number is needed, not true"),
        ({"training": {"epochs": None}}, "spec.training.epochs: a whole number is needed; leave the field out for its default"),
        ({"training": {"epochs": 0}}, "spec.training.epochs: 0 is too small; at least 1 is needed"),
        ({"training": {"learningRate": 0}}, "spec.training.learningRate: 0 is too small; more than 0.0 is needed"),
        ({"training": {"warmupRatio": 1}}, "spec.training.warmupRatio: 1 is too large; less than 1.0 is needed"),
        ({"training": {"learningRate": float("inf")}}, "spec.training.learningRate: inf is no finite number"),
        ({"pipeline": {"stages": 65}}, "spec.pipeline.stages: 65 is too large; at most 64 is needed"),
        ({"pipeline": None}, "spec.pipeline: empty; give it fields or leave it out"),
        ({"pipeline": 3}, "spec.pipeline: a mapping is needed, not 3"),
        ({"suspend": "yes"}, "spec.suspend: 'yes' is text; true or false is needed"),
        (
            {"training": {"schedule": "linear"}},
            "spec.training.schedule: 'linear' is not one of Linear, Cosine, Constant, CosineWithRestarts, Polynomial, InverseSqrt;"
            " did you mean Linear?",
        ),
        (
            {"training": {"schedule": "zzz"}},
            "spec.training.schedule: 'zzz' is not one of Linear, Cosine, Constant, CosineWithRestarts, Polynomial, InverseSqrt",
        ),
        ({"strategy": 3}, "spec.strategy: 3 is not one of Pipeline, Command"),
        ({"dataset": {"text": "review"}}, "spec.dataset.text: 'review' is text; a list is needed: [review]"),
        ({"dataset": {"text": []}}, "spec.dataset.text: 0 items; at least 1 are needed"),
        ({"dataset": {"text": ["a", "b", "c"]}}, "spec.dataset.text: 3 items; at most 2 are needed"),
        ({"dataset": {"text": ["a", 3]}}, "spec.dataset.text[1]: 3 is a number; text is needed (put it in quotes)"),
        ({"model": {"labels": [True, "no"]}}, "spec.model.labels[0]: true is a boolean; text is needed (put it in quotes)"),
        ({"dataset": {"source": ""}}, "spec.dataset.source: must not be empty"),
        ({"dataset": {"label": datetime.date(2020, 1, 2)}}, "spec.dataset.label: 2020-01-02 is read as a date; put it in quotes"),
        ({"placement": {"nodeSelector": {1: "a"}}}, "spec.placement.nodeSelector: the key 1 is no text; put it in quotes"),
        ({"output": {"path": None}}, "spec.output.path: text is needed"),
        ({"dataset": None}, "spec.dataset: empty; it needs source"),
        ({"model": None}, "spec.model: empty; give it fields"),
        (
            {"training": {"precision": "fp16"}},
            "spec.training.precision: 'fp16' is not one of Float32, BFloat16, Float16; did you mean Float16?",
        ),
        ({"training": {"device": "gpu"}}, "spec.training.device: 'gpu' is not one of Auto, CPU, CUDA; did you mean CUDA?"),
        (
            {"model": {"source": "bert-base-uncased"}},
            "spec.model: set exactly one of source (pretrained weights), scratch (random weights) and python (a class of your own)",
        ),
        (
            {"output": {"trackers": [{"kind": "MLflow", "project": "p"}]}},
            "spec.output.trackers[0]: uri is missing: MLflow needs the address of its tracking server, as in http://mlflow:5000",
        ),
        (
            {"output": {"trackers": [{"kind": "WandB", "project": "p", "space": "me/board"}]}},
            "spec.output.trackers[0]: space is for Trackio, in the place of uri: leave one of them out",
        ),
        (
            {"output": {"trackers": [{"kind": "Trackio", "project": "p", "offline": True}]}},
            "spec.output.trackers[0]: offline is for WandB without uri: leave one of them out",
        ),
        (
            {"output": {"hub": {"repository": "me/tiny", "content": "Adapter"}}},
            "spec: output.hub.content Adapter needs model.lora: push the Model, or train an adapter",
        ),
        ({"model": {"scratch": {"hiddenSize": 10}}}, "spec.model.scratch: hiddenSize 10 is not a multiple of heads 4"),
        ({"model": {"labels": ["a", "a"]}}, "spec.model: labels holds a name twice"),
        (
            {"pipeline": {"layers": [4]}},
            "spec.pipeline: layers names 1 stages, stages is 2: give one number for each stage",
        ),
        ({"pipeline": {"microBatches": 5}}, "spec: training.batchSize 32 is not a multiple of pipeline.microBatches 5"),
        (
            {
                "pipeline": {"microBatches": 600},
                "training": {"batchSize": 600},
                "dataParallel": {"shards": 600, "replicas": 600},
            },
            "spec: pipeline.stages 2 times dataParallel.replicas 600 is 1200 ranks, and a job has at most 1024: make"
            " dataParallel.replicas at most 512",
        ),
        (
            {"dataParallel": {"shards": 4, "replicas": 3, "maxReplicas": 2}},
            "spec.dataParallel: replicas 3 is more than maxReplicas 2: raise maxReplicas first",
        ),
        (
            {"dataParallel": {"shards": 4, "maxReplicas": 5}},
            "spec.dataParallel: maxReplicas 5 is more than shards 4: each replica needs a shard",
        ),
        (
            {"dataParallel": {"shards": 4, "replicas": 5}},
            "spec.dataParallel: replicas 5 is more than shards 4: each replica needs a shard",
        ),
        ({"dataParallel": {"shards": 4, "minReplicas": 2}}, "spec.dataParallel: minReplicas 2 is more than replicas 1"),
        ({"training": {"warmupSteps": 1, "warmupRatio": 0.1}}, "spec.training: set warmupSteps or warmupRatio, not both"),
        (
            {"dataset": {"splits": {"validation": "v", "validationFraction": 0.1}}},
            "spec.dataset.splits: set validation or validationFraction, not both",
        ),
    ],
)
def test_a_mistake_is_one_line(spec: dict[str, Any], line: str) -> None:
    assert problem(document(**spec)) == line


def test_a_misspelt_field_is_not_missing_as_well() -> None:
    doc = document()
    doc["spec"]["dataset"]["lable"] = doc["spec"]["dataset"].pop("label")
    assert problem(doc) == "spec.dataset.lable: unknown field; did you mean label?"


def test_a_missing_field_is_explained() -> None:
    doc = document()
    del doc["spec"]["dataset"]["source"]
    assert problem(doc) == (
        "spec.dataset.source: missing (A ``.csv``, ``.tsv``, ``.jsonl``, ``.json`` or ``.parquet`` file, a folder that ``save_to_disk`` "
        "wrote, or a hub id. A relative path is relative to the job's file. A file or folder in object storage, ``s3://BUCKET/FILE``, is "
        "fetched once, into the output folder.)"
    )


def test_a_missing_column_of_text_is_told() -> None:
    doc = document()
    del doc["spec"]["dataset"]["text"]
    assert problem(doc) == "spec: dataset.text is missing: name the column of the text, or the two columns of a pair"


def test_several_mistakes_are_told_up_to_a_limit() -> None:
    training = {"epochs": 0, "batchSize": 0, "learningRate": 0, "weightDecay": -1, "seed": -1, "threads": 0}
    with pytest.raises(SpecError) as caught:
        load(document(training=training))
    assert len(str(caught.value).splitlines()) == MOST == 5
    assert len(caught.value.lines) == len(training)


@pytest.mark.parametrize(
    ("doc", "line"),
    [
        ([1], "the job's file holds a list; a mapping with apiVersion, kind, metadata and spec is needed"),
        (None, "the file is empty; a job has apiVersion, kind, metadata and spec"),
        (document() | {"spec": None}, "spec: empty; it needs model, dataset, output"),
        (document() | {"metadata": None}, "metadata: empty; it needs name"),
        ({}, "apiVersion: missing; write apiVersion: lmj.dev/v1alpha1"),
        ({"apiversion": "x"}, "apiVersion: missing; write apiVersion: lmj.dev/v1alpha1 (not apiversion)"),
        ({"apiVersion": "v1", "kind": "Pod"}, "apiVersion: 'v1' is not lmj.dev/v1alpha1"),
        ({"apiVersion": "lmj.dev/v1alpha1", "kind": "Job"}, "kind: 'Job' is not LiveMigrationJob"),
        (
            document() | {"metadata": {"name": "My Job"}},
            "metadata.name: 'My Job' does not match ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$ (lower-case letters, digits and '-')",
        ),
        (document() | {"metadata": {}}, "metadata.name: missing (Name of the job; pods are called after it.)"),
        (document() | {"specs": {}}, "specs: unknown field; did you mean spec?"),
    ],
)
def test_what_is_no_job_is_refused(doc: object, line: str) -> None:
    assert problem(doc) == line


def test_a_document_that_holds_itself_is_refused() -> None:
    doc = document()
    doc["spec"]["template"] = doc
    assert "nested deeper than 64 levels" in problem(doc)


def test_an_exponent_without_a_dot_is_a_number_as_in_kubernetes() -> None:
    assert load(document(training={"learningRate": "5e-5"})).spec.training.learning_rate == 5e-5


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("training.batchSize=16", "training.batch_size", 16),
        ("spec.training.batchSize=16", "training.batch_size", 16),
        ("training.learningRate=3e-4", "training.learning_rate", 3e-4),
        ("training.schedule=Cosine", "training.schedule", "Cosine"),
        ("training.maxGradNorm=null", "training.max_grad_norm", None),
        ("suspend=true", "suspend", True),
        ("dataset.text=[a,b]", "dataset.text", ["a", "b"]),
        ('dataset.text=["a, b"]', "dataset.text", ["a, b"]),
        ("dataset.label=7", "dataset.label", "7"),
        ("dataset.label=a=b", "dataset.label", "a=b"),
        ("dataset.splits.testFraction=0.5", "dataset.splits.test_fraction", 0.5),
        ("pipeline.layers=[1,3]", "pipeline.layers", [1, 3]),
        ("placement.nodeSelector.kubernetes.io/hostname=n1", "placement.node_selector", {"kubernetes.io/hostname": "n1"}),
        ('placement.nodeSelector={"a":"b"}', "placement.node_selector", {"a": "b"}),
        ("template.spec.priority=3", "template", {"spec": {"priority": 3}}),
        ("model.scratch.layers=2", "model.scratch.layers", 2),
    ],
)
def test_a_field_is_set(assignment: str, path: str, value: object) -> None:
    found = load(document(), assignment).spec
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


def test_the_name_is_set_and_a_later_value_wins() -> None:
    job = load(document(), "metadata.name=other", "training.epochs=4", "training.epochs=5")
    assert (job.metadata.name, job.spec.training.epochs) == ("other", 5)


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("trainig.batchSize=16", "spec.trainig: unknown field; did you mean training?"),
        ("training.batch_size=16", "spec.training.batch_size: unknown field; did you mean batchSize?"),
        ("batchSize=16", "spec.batchSize: unknown field; did you mean spec.training.batchSize?"),
        ("training.batchSize", "--set training.batchSize: write PATH=VALUE, as in --set training.batchSize=16"),
        ("=3", "--set =3: write PATH=VALUE, as in --set training.batchSize=16"),
        ("training.batchSize.x=1", "--set spec.training.batchSize.x: spec.training.batchSize has no fields; set it as a whole"),
        ("training.batchSize=abc", "spec.training.batchSize: 'abc' is text; a whole number is needed"),
        ("dataset.text=review", "spec.dataset.text: 'review' is text; a list is needed: [review]"),
    ],
)
def test_a_wrong_set_is_one_line(assignment: str, line: str) -> None:
    assert problem(document(), assignment) == line


def test_a_set_cannot_lead_through_a_value() -> None:
    doc = document()
    doc["spec"]["training"] = 5
    assert problem(doc, "training.epochs=1") == "--set spec.training.epochs: spec.training is 5, which has no fields"


def test_paths_become_absolute(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "held-out").write_text("x")
    (tmp_path / "test").mkdir()
    dataset = {"source": "saved", "splits": {"validation": "held-out", "test": "test"}}
    doc = document(dataset=dataset, model={"source": "model", "scratch": None}, checkpoint={"path": "../ckpt"})
    spec = load(doc, base=tmp_path).spec
    assert spec.dataset.source == str(tmp_path / "saved")
    assert spec.dataset.splits.validation == str(tmp_path / "held-out")
    assert spec.dataset.splits.test == "test"  # a split: folders are no split files
    assert spec.model.source == str(tmp_path / "model")
    assert (spec.output.path, spec.checkpoint.path) == (str(tmp_path / "runs/x"), str(tmp_path.parent / "ckpt"))


def test_what_is_written_may_lie_on_another_volume_than_what_is_read() -> None:
    spec = load_job(document(checkpoint={"path": "ckpt"}), base=BASE, outputs=Path("/output"), here=False).spec
    assert (spec.dataset.source, spec.output.path, spec.checkpoint.path) == (
        "/jobs/reviews.csv",
        "/output/runs/x",
        "/output/ckpt",
    )


def test_names_that_are_no_paths_stay() -> None:
    dataset = {"source": "stanfordnlp/imdb", "splits": {"validation": "validation", "test": "data/test.csv"}}
    spec = load(document(dataset=dataset, model={"source": "bert-base-uncased", "scratch": None})).spec
    assert spec.dataset.source == "stanfordnlp/imdb"
    assert (spec.dataset.splits.validation, spec.dataset.splits.test) == ("validation", "/jobs/data/test.csv")
    assert (spec.model.source, spec.checkpoint.path) == ("bert-base-uncased", None)


def test_a_data_file_is_a_path_even_before_it_exists_and_home_is_known() -> None:
    assert load(document()).spec.dataset.source == "/jobs/reviews.csv"
    assert load(document(), "dataset.source=~/a.tsv").spec.dataset.source == str(Path.home() / "a.tsv")
    assert load(document(), "dataset.source=/abs/../a.parquet").spec.dataset.source == "/a.parquet"


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("output.path=hdfs://b/run", "spec.output.path: 'hdfs://b/run': hdfs:// cannot be read or written yet; write a path"),
        ("output.path=s3://bucket", "spec.output.path: s3://bucket: this is a whole bucket: name a folder in it"),
        ("output.scratch=/tmp/x", "spec.output.scratch: output.path is no place in object storage: leave it out"),
        ("checkpoint.path=hdfs://c/x", "spec.checkpoint.path: 'hdfs://c/x': hdfs:// cannot be read or written yet; write a path"),
        ("checkpoint.path=gs://c/x", "spec.checkpoint.path: gs://c/x: write gs://BUCKET/FOLDER"),
        ("checkpoint.path=s3://c/x", "spec.checkpoint.path: s3://c/x: write s3://BUCKET/FOLDER"),
        ("checkpoint.path=azblob://runs/../x", "spec.checkpoint.path: azblob://runs/../x: write azblob://CONTAINER/FOLDER"),
        (
            "checkpoint.path=azfile://runs/Mine",
            "spec.checkpoint.path: azfile://runs/Mine: Azure Files does not tell capitals from small letters: write mine",
        ),
        ("checkpoint.secretName=keys", "spec.checkpoint.secretName: no place of this job is in object storage: leave it out"),
        (
            "dataset.source=hdfs://b/a.csv",
            "spec.dataset.source: 'hdfs://b/a.csv': hdfs:// cannot be read or written yet; write a path",
        ),
        ("model.source=S3://b/m", "spec.model.source: 'S3://b/m': S3:// cannot be read or written yet; write a path"),
    ],
)
@pytest.mark.parametrize("here", [True, False])
def test_a_scheme_is_no_folder(assignment: str, line: str, here: bool) -> None:
    with pytest.raises(SpecError) as caught:
        load_job(document(model={"source": "x", "scratch": None}), base=BASE, sets=[assignment], here=here)
    assert str(caught.value) == line


@pytest.mark.parametrize("here", [True, False])
def test_checkpoints_may_lie_in_a_bucket(here: bool) -> None:
    sets = ["checkpoint.path=s3://my-bucket/runs/1/", "checkpoint.secretName=keys"]
    layout = Layout.of(load_job(document(), base=BASE, sets=sets, here=here).spec)
    assert layout.bucket == "s3://my-bucket/runs/1"
    assert layout.checkpoints == layout.output / "checkpoints", "no folder of that name is made here"
    assert Layout.of(load_job(document(), base=BASE, here=here).spec).bucket is None


@pytest.mark.parametrize("here", [True, False])
def test_results_may_lie_in_a_bucket(here: bool) -> None:
    sets = ["output.path=gs://my-bucket/runs/reviews/", "checkpoint.secretName=keys"]
    spec = load_job(document(), base=BASE, sets=sets, here=here).spec
    layout = Layout.of(spec)
    assert (spec.output.path, layout.results) == ("gs://my-bucket/runs/reviews", "gs://my-bucket/runs/reviews")
    assert layout.output == BASE / "reviews"
    assert layout.bucket == "gs://my-bucket/runs/reviews/checkpoints"
    sets.append("checkpoint.path=/checkpoints")
    sets.append("output.scratch=fast/x")
    layout = Layout.of(load_job(document(), base=BASE, sets=sets, here=here).spec)
    assert (layout.output, layout.bucket, layout.checkpoints) == (BASE / "fast" / "x", None, Path("/checkpoints"))


@pytest.mark.parametrize(
    ("assignment", "named", "remedy"),
    [
        ('output.trackers=[{"kind": "Trackio", "project": "p"}]', "trackers[0]", "name a server (uri or space), or a path"),
        (
            'output.trackers=[{"kind": "WandB", "project": "p"}, {"kind": "WandB", "project": "p", "offline": true}]',
            "trackers[1]",
            "name a server (uri or space), or a path",
        ),
    ],
)
def test_what_writes_files_needs_results_on_a_volume(assignment: str, named: str, remedy: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(document(), "output.path=s3://bucket/run", assignment)
    assert str(caught.value) == (
        f"spec.output.{named}: is files in the output folder, and output.path s3://bucket/run is in object storage: {remedy}"
    )


@pytest.mark.parametrize(
    "assignment",
    [
        'output.trackers=[{"kind": "MLflow", "project": "p", "uri": "http://a"}]',
        'output.trackers=[{"kind": "Trackio", "project": "p", "space": "me/x"}]',
        'output.trackers=[{"kind": "Trackio", "project": "p", "uri": "http://a"}]',
        'output.trackers=[{"kind": "WandB", "project": "p"}]',
        'output.hub={"repository": "me/x"}',
    ],
)
def test_results_in_a_bucket_are_shown_and_pushed(assignment: str) -> None:
    assert load(document(), "output.path=s3://bucket/run", assignment).spec.output.delivers


@pytest.mark.parametrize("here", [True, False])
def test_rows_and_the_model_may_lie_in_buckets(here: bool) -> None:
    sets = [
        "dataset.source=s3://data/rows/train.CSV",
        "dataset.splits.validation=azblob://more/validation.jsonl",
        "dataset.splits.test=s3://data/test.parquet",
        "model.source=s3://models/tiny/",
        "checkpoint.secretName=keys",
    ]
    spec = load_job(document(model={"source": "x", "scratch": None}), base=BASE, sets=sets, here=here).spec
    assert (spec.dataset.source, spec.model.source) == ("s3://data/rows/train.CSV", "s3://models/tiny")
    assert (spec.dataset.splits.validation, spec.dataset.splits.test) == (
        "azblob://more/validation.jsonl",
        "s3://data/test.parquet",
    )
    assert spec.checkpoint.path is None
    for each in sets[:-1]:
        alone = document(model={"source": "x", "scratch": None})
        assert load_job(alone, base=BASE, sets=[each, sets[-1]], here=here).spec.checkpoint.secret_name == "keys"


def test_a_folder_of_rows_in_a_bucket_ends_in_no_slash() -> None:
    assert load(document(), "dataset.source=s3://data/rows/").spec.dataset.source == "s3://data/rows"


@pytest.mark.parametrize(
    ("sets", "line"),
    [
        (["dataset.source=s3://data"], "spec.dataset.source: s3://data: this is a whole bucket: name a file or folder in it"),
        (["model.source=azblob://tiny/"], "spec.model.source: azblob://tiny/: this is a whole bucket: name a folder in it"),
        (["model.source=s3://models/a//b"], "spec.model.source: s3://models/a//b: write s3://BUCKET/FOLDER"),
        (["dataset.source=s3://data/../x.csv"], "spec.dataset.source: s3://data/../x.csv: write s3://BUCKET/FOLDER"),
        (
            ["dataset.splits.test=s3://data/test"],
            "spec.dataset.splits.test: s3://data/test: name a file there (.csv, .json, .jsonl, .parquet, .tsv)",
        ),
        (
            ["dataset.source=s3://data/a.csv", "dataset.revision=main"],
            "spec.dataset.revision: s3://data/a.csv is in object storage, which has no revisions: leave it out",
        ),
        (
            ["model.source=s3://models/tiny", "model.revision=main"],
            "spec.model.revision: s3://models/tiny is in object storage, which has no revisions: leave it out",
        ),
    ],
)
@pytest.mark.parametrize("here", [True, False])
def test_what_no_place_in_a_bucket_can_be(sets: list[str], line: str, here: bool) -> None:
    with pytest.raises(SpecError) as caught:
        load_job(document(model={"source": "x", "scratch": None}), base=BASE, sets=sets, here=here)
    assert str(caught.value) == line


def test_a_script_lies_in_no_bucket() -> None:
    parts = {"model": {"python": "s3://b1b/train.py:__main__", "scratch": None}, "dataset": {"source": "s3://b1b/train.py"}}
    doc = document()
    doc["spec"] = {**doc["spec"], **parts, "pipeline": {"stages": 1}}
    del doc["spec"]["model"]["scratch"]
    assert "spec.model.python: 's3://b1b/train.py:__main__': s3:// cannot be read" in problem(doc)


def test_stragglers_are_looked_for_where_there_can_be_replicas() -> None:
    """Not only where there are some: a job may have one replica for a while."""
    shards = {"shards": 4, "replicas": 1}
    straggler = load(document(recovery={"straggler": {}}, dataParallel=shards)).spec.recovery.straggler
    assert (straggler.factor, straggler.seconds, straggler.action) == (1.5, 60, "Report")
    assert problem(document(recovery={"straggler": {}})) == (
        "spec: recovery.straggler compares replicas, and with dataParallel.shards 1 there is never more than one:"
        " leave it out, or raise dataParallel.shards"
    )
    for part in ({"factor": 1.0}, {"seconds": 0}, {"action": "Kill"}):
        assert problem(document(recovery={"straggler": part}, dataParallel=shards)).startswith(
            f"spec.recovery.straggler.{next(iter(part))}: "
        )


@pytest.mark.parametrize(("name", "wanted"), [("hotStandby", True), ("memorySnapshot", {"everySteps": 5})])
def test_replicas_are_copies_enough(name: str, wanted: Any) -> None:
    """A job that only could have several may keep a copy, until it has them."""
    alone = {"shards": 4, "replicas": 1, "maxReplicas": 4}
    job = load(document(recovery={name: wanted}, dataParallel=alone))
    line = f"recovery.{name} keeps what other replicas hold anyway: leave it out, or set dataParallel.replicas 1"
    assert problem(document(recovery={name: wanted}, dataParallel={**alone, "replicas": 2})) == f"spec: {line}"
    with pytest.raises(ValueError, match=re.escape(line)):
        job.spec.scaled(2)


def test_a_field_that_has_another_name_now_says_which() -> None:
    assert problem(document(recovery={"replica": True})) == "spec.recovery.replica: is called spec.recovery.hotStandby now"
