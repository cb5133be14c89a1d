"""A task is a folder and a line in the registry: here the second one, with all that a job does."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from lmj_api.protocol import EventKind, WorkerPhase
from lmj_api.spec import LiveMigrationJob, Model
from lmj_api.view import Resume
from lmj_trainer import evaluate, predict
from lmj_trainer.data.files import read_rows
from lmj_trainer.data.rows import Rows
from lmj_trainer.data.split import NO_LABEL
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.dataset.prepared import prepare, prepared_digest
from lmj_trainer.errors import UserError
from lmj_trainer.model.inputs import Inputs
from lmj_trainer.model.stage import Stage
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.state.weights import initialise
from lmj_trainer.task.registry import task_of
from lmj_trainer.task.saved_model import SavedModel
from lmj_trainer.task.token_classification.entities import are_tags, entities
from lmj_trainer.task.token_classification.heads import HEADS
from lmj_trainer.task.token_classification.objective import WordObjective
from lmj_trainer.task.token_classification.task import TokenClassification
from lmj_trainer.task.token_classification.words import by_word, check_words, token_labels
from lmj_trainer.transport.inbox import ViewBrokenError

from .conftest import small_config
from .small_job import Line, elsewhere, losses, make, start, view, weights

pytestmark = pytest.mark.integration

TASK = TokenClassification()
TAGS = ["B-PER", "I-PER", "O"]


def rows_of(words: list[Any], labels: list[Any]) -> Rows:
    kind = pa.large_list(pa.large_string()) if isinstance(words[0], list) else pa.large_string()
    return Rows.of(["words"], [pa.chunked_array([pa.array(words, kind)])], labels, None, "a.jsonl")


def sentence(rng: random.Random) -> dict[str, list[str]]:
    name = rng.choice([["Ada"], ["Ada", "Stone"], ["Boris"]])
    rest = rng.choice([["saw", "the", "stone"], ["left"], ["went", "up", "the", "hill"]])
    tags = ["B-PER", "I-PER"][: len(name)] + ["O"] * len(rest)
    return {"words": [*name, *rest], "tags": tags}


@pytest.fixture
def job(tmp_path: Path) -> LiveMigrationJob:
    """64 rows for training and 16 for validation, in batches of 16: 32 steps in 8 epochs."""
    rng = random.Random(5)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(sentence(rng)) + "\n" for _ in range(80)))
    scratch = {"layers": 2, "hiddenSize": 16, "heads": 2, "intermediateSize": 32, "vocabulary": 64, "maxPositions": 16}
    spec = {
        "pipeline": {"stages": 1, "microBatches": 2},
        "model": {"task": "TokenClassification", "scratch": scratch},
        "dataset": {
            "source": str(tmp_path / "data.jsonl"),
            "text": ["words"],
            "label": "tags",
            "maxLength": 16,
            "splits": {"validationFraction": 0.2},
        },
        "training": {"batchSize": 16, "epochs": 8, "learningRate": 1e-2},
        "checkpoint": {"keep": 9},
        "output": {"path": str(tmp_path / "out"), "weights": "Best"},
    }
    return LiveMigrationJob.model_validate({"metadata": {"name": "small"}, "spec": spec})


@pytest.fixture
def trained(job: LiveMigrationJob) -> LiveMigrationJob:
    assert make(job, Line()).run(view(1, start())) is WorkerPhase.COMPLETED
    return job


def test_the_first_token_of_a_word_has_its_label() -> None:
    words, ids = ["New York", "sleeps", "."], np.array([4, 5, 6])
    # [CLS] New York sl eeps . [SEP]; in some families the space before a word is part of its token.
    spans = [(0, 0), (0, 3), (4, 8), (9, 11), (11, 15), (15, 17), (0, 0)]
    assert token_labels(words, ids, spans).tolist() == [NO_LABEL, 4, NO_LABEL, 5, NO_LABEL, 6, NO_LABEL]


def test_a_word_without_a_token_shifts_no_other() -> None:
    assert token_labels(["a", "\u200b", "b"], np.array([7, 8, 9]), [(0, 1), (4, 5)]).tolist() == [7, 9]


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-PER I-PER O", {(1, 3, "PER")}),
        ("B-PER B-PER", {(0, 1, "PER"), (1, 2, "PER")}),
        ("B-PER I-LOC", {(0, 1, "PER"), (1, 2, "LOC")}),
        ("I-PER I-PER O I-LOC", {(0, 2, "PER"), (3, 4, "LOC")}),
        ("B-PER-X I-PER-X", {(0, 2, "PER-X")}),
        ("O O", set()),
    ],
)
def test_entities_by_their_tags(tags: str, found: set[Any]) -> None:
    assert entities(tags.split()) == found


@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"])))
def test_entities_part_the_words_that_are_in_one(tags: list[str]) -> None:
    found = sorted(entities(tags))
    inside = [place for begin, end, kind in found for place in range(begin, end)]
    assert inside == [place for place, tag in enumerate(tags) if tag != "O"]
    assert all({tag[2:] for tag in tags[begin:end]} == {kind} for begin, end, kind in found)
    assert all(tag.startswith("I-") for begin, end, _ in found for tag in tags[begin + 1 : end])


def test_labels_that_are_no_tags() -> None:
    assert not are_tags(["NOUN", "VERB", "O"])
    assert not are_tags(["O"])


def test_evaluation_counts_words_and_entities() -> None:
    objective = WordObjective(TAGS)
    true = torch.tensor([[NO_LABEL, 0, 1, NO_LABEL, 2], [0, 2, NO_LABEL, NO_LABEL, NO_LABEL]])
    said = torch.tensor([[2, 0, 1, 0, 2], [2, 0, 1, 1, 1]])
    output = torch.nn.functional.one_hot(said, 3).float() * 20
    counts = objective.counts()
    counts.add(0, output, true)
    result = objective.evaluation(objective.counts(json.loads(json.dumps(counts.payload()))), "test", 3)
    assert (result.samples, result.confusion) == (5, [[1, 0, 1], [0, 1, 0], [1, 0, 1]])
    assert (result.accuracy, result.f1) == (0.6, 0.5), "one entity of two is found, and one that is none"
    expected = torch.nn.functional.cross_entropy(output[true != NO_LABEL].double(), true[true != NO_LABEL])
    assert result.loss == pytest.approx(float(expected))
    assert objective.samples(true) == 5
    assert torch.equal(objective.loss(output, true), torch.nn.functional.cross_entropy(output.flatten(0, 1), true.flatten()))


def test_f1_of_other_labels_is_that_of_labels() -> None:
    objective = WordObjective(["NOUN", "VERB"])
    counts = objective.counts()
    counts.add(0, torch.tensor([[[9.0, 0.0], [9.0, 0.0], [0.0, 9.0]]]), torch.tensor([[0, 1, 1]]))
    assert objective.evaluation(counts, "test", 0).f1 == pytest.approx(2 / 3)


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra", "gpt2", "llama", "qwen2"])
def test_stages_in_a_row_compute_what_the_model_does(family: str) -> None:
    config = small_config(family, num_labels=5)
    torch.manual_seed(0)
    model = transformers.AutoModelForTokenClassification.from_config(config).eval()
    ids = torch.randint(5, 3000, (2, 12))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    ids[1, 7:] = config.pad_token_id
    hidden, names = None, []
    for layers in (range(2), range(2, 3)):
        stage = Stage(config, HEADS, layers, seed=1)
        state = StageState(stage, torch.device("cpu"))
        initialise(stage, state, Model.model_validate({"scratch": {}}))
        names += [slot.name for slot in state.slots]
        for slot in state.slots:
            slot.weight.copy_(model.get_parameter(slot.name).detach())
        stage.set_training(False)
        with torch.no_grad():
            hidden = stage(Inputs(ids, mask, None, torch.zeros(2, 12, dtype=torch.long)), hidden, None)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits
    assert hidden is not None
    assert torch.allclose(hidden, expected, atol=1e-6)
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_a_job_learns_and_its_model_is_one_of_transformers(trained: LiveMigrationJob) -> None:
    values = losses(trained)
    assert values[-1] < values[0] / 2
    folder = Path(trained.spec.output.path) / "model"
    tagger = transformers.pipeline("token-classification", model=str(folder), aggregation_strategy="simple")
    assert [(found["entity_group"], found["word"]) for found in tagger("Ada Stone left")] == [("PER", "ada stone")]
    assert "pipeline_tag: token-classification" in (folder / "README.md").read_text()
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForTokenClassification"]


def test_a_broken_view_and_a_resume_change_no_bit(trained: LiveMigrationJob, tmp_path: Path) -> None:
    other, line = elsewhere(trained, tmp_path / "other"), Line()
    trainer = make(other, line)
    inbox = trainer._transport.inbox
    line.on = lambda kind, details: (
        inbox.supersede(2, "test") if kind is EventKind.COMMITTED and details["progress"].step == 3 else None
    )
    with pytest.raises(ViewBrokenError):
        trainer.run(view(1, start()))
    line.on = lambda kind, details: None
    assert trainer.run(view(2, Resume(step=3))) is WorkerPhase.COMPLETED
    assert losses(other) == losses(trained)
    assert all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(trained).items())


def test_low_rank_adapters_train_the_head_too(job: LiveMigrationJob, tmp_path: Path) -> None:
    make(job, Line()).run(view(1, start()))
    names = ["value", "query", "key", "dense"]
    source = str(tmp_path / "out" / "model")
    model = Model.model_validate({"source": source, "task": "TokenClassification", "lora": {"targetModules": names}})
    adapted = elsewhere(job, tmp_path / "adapted")
    spec = adapted.spec.model_copy(update={"model": model})
    assert make(adapted.model_copy(update={"spec": spec}), Line()).run(view(1, start())) is WorkerPhase.COMPLETED
    config = json.loads((tmp_path / "adapted" / "adapter" / "adapter_config.json").read_text())
    assert config["task_type"] == "TOKEN_CLS"
    assert config["target_modules"] == sorted(names), "in the same order in every process"
    before, after = weights(job), weights(adapted)
    assert {name for name in after if not torch.equal(before[name], after[name])} >= {"classifier.weight", "classifier.bias"}


def test_evaluate_and_predict(trained: LiveMigrationJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained.spec.output.path
    assert evaluate.main([folder, str(tmp_path / "data.jsonl"), "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["f1"] > 0.9
    assert predict.main([folder, "Ada Stone left", "Boris saw the hill"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [
        *(["Ada", "B-PER"], ["Stone", "I-PER"], ["left", "O"]),
        [""],
        *(["Boris", "B-PER"], ["saw", "O"], ["the", "O"], ["hill", "O"]),
        [""],
    ]
    assert predict.main([folder, "Ada " * 40, "-o", "json"]) == 0
    cut = json.loads(capsys.readouterr().out)["words"]
    assert 1 < len(cut) < 16, "as many as fit"
    assert {entry["word"] for entry in cut} == {"Ada"}


def test_a_word_without_a_token_has_no_prediction(trained: LiveMigrationJob) -> None:
    saved = SavedModel.load(Path(trained.spec.output.path))
    (_, said), _ = saved.task.predict(saved, ["Ada \u200b left", "left"], Ticker(print))
    assert [entry["word"] for entry in json.loads(said.to_json())["words"]] == ["Ada", "left"]


def test_words_in_a_table_are_separated_by_spaces(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("words,tags\nAda  left,B-PER O\nthe hill,O O\n")
    rows = read_rows(path, ["words"], "tags")
    labels = TASK.labels(rows, None, "tags")
    assert labels.names == ("B-PER", "O")
    assert TASK.ids(rows, labels).tolist() == [0, 1, 1, 1]


def test_words_in_parquet_with_names_for_their_numbers(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {
            "words": datasets.Sequence(datasets.Value("string")),
            "tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"])),
        }
    )
    data = datasets.Dataset.from_dict({"words": [["Ada", "left"]], "tags": [[1, 0]]}, features=features)
    data.to_parquet(str(tmp_path / "a.parquet"))
    rows = read_rows(tmp_path / "a.parquet", ["words"], "tags")
    labels = TASK.labels(rows, None, "tags")
    assert labels.names == ("O", "B-PER")
    assert TASK.ids(rows, labels).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("words", "labels", "message"),
    [
        ([["a", "b"], ["c"]], [["O", "O"], ["O", "O"]], "row 2 of a.jsonl has 1 words and 2 labels"),
        (["a b"], ["O"], "row 1 of a.jsonl has 2 words and 1 labels"),
        ([["a"]], [None], "row 1 of a.jsonl has no label"),
        ([["a"], []], [["O"], []], "row 2 of a.jsonl has no words in column 'words'"),
        ([["a"], ["b", " "]], [["O"], ["O", "O"]], "row 2 of a.jsonl has an empty word"),
    ],
)
def test_rows_that_cannot_be_trained_on(words: list[Any], labels: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TASK.labels(rows_of(words, labels), None, "tags")


def test_two_columns_are_refused() -> None:
    two = Rows.of_texts(["a", "b"], [["x"], ["y"]], [["O"]])
    with pytest.raises(UserError, match=r"dataset.text names 2 columns: .* takes one"):
        check_words(two)


def test_a_label_that_is_none_is_named_by_its_row() -> None:
    rows = rows_of([["a", "b"], ["c"]], [["O", "B-A"], ["B-B"]])
    with pytest.raises(UserError, match=r"row 2 of a.jsonl has label 'B-B'"):
        TASK.ids(rows, TASK.labels(rows, ["O", "B-A"], "tags"))
    assert by_word(rows).where(1) == "row 1 of a.jsonl"


def test_a_row_of_which_no_word_is_left_is_refused(job: LiveMigrationJob, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(path.read_text() + json.dumps({"words": ["\u200b"], "tags": ["O"]}) + "\n")
    with pytest.raises(UserError, match=r"row 81 of .* has no word that the tokenizer knows within 16 tokens"):
        prepare(job.spec, tmp_path / "cache", lambda line: None)


def test_tokens_of_one_task_are_not_those_of_another(job: LiveMigrationJob) -> None:
    other = job.spec.model_copy(update={"model": job.spec.model.model_copy(update={"task": "SequenceClassification"})})
    assert prepared_digest(other) != prepared_digest(job.spec)


def test_lists_of_words_are_no_texts(job: LiveMigrationJob, tmp_path: Path) -> None:
    other = job.spec.model_copy(update={"model": job.spec.model.model_copy(update={"task": "SequenceClassification"})})
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"words": ["a"], "tags": "no" if i % 2 else "yes"}) + "\n" for i in range(8)))
    with pytest.raises(UserError, match=r"column 'words' of .* holds lists of words, not text"):
        prepare(other, tmp_path / "cache", lambda line: None)


def test_the_task_of_a_saved_model() -> None:
    assert type(task_of(["BertForTokenClassification"])) is TokenClassification
    assert task_of(["BertForNextSentencePrediction"]) is None
