"""Models of types that cannot be cut: any that transformers has a class for, on one stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parity_jobs import WORDS, make_data, make_job
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertTokenizerFast,
)

from lmj_api.layout import Layout
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.check import check
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.errors import UserError
from lmj_trainer.model.config import stored_count
from lmj_trainer.task.saved_model import SavedModel

from .small_job import Line, make, start, view
from .test_replicas import learn_the_same

pytestmark = pytest.mark.integration

SIZES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0},
    "deberta-v2": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "gpt_neox": {"hidden_dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.0},
}  # fmt: skip


def make_source(folder: Path, kind: str, auto: Any = AutoModelForSequenceClassification, **more: Any) -> Path:
    """A model of a type, with random weights, and its tokenizer."""
    vocabulary = folder.parent / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(vocabulary))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    common = {"vocab_size": len(tokenizer), "max_position_embeddings": 40, "num_labels": 2, "pad_token_id": 0}
    torch.manual_seed(1)
    auto.from_config(AutoConfig.for_model(kind, **{**common, **sizes, **SIZES[kind], **more})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def job_of(folder: Path, source: Path, **changes: Any) -> LiveMigrationJob:
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Any] = {
        "training": {"maxSteps": 12, "learningRate": 5e-3, "threads": 1},
        "dataset": {"splits": {"validationFraction": 0.2}},
        "output": {"path": str(folder / "out")},
        "pipeline": {"stages": 1},
        **changes,
    }
    return make_job(folder / "out", make_data(folder / "rows.csv", rows=160), source, 1, **parts)


@pytest.mark.parametrize("kind", SIZES)
def test_replicas_learn_what_one_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    source = make_source(tmp_path / kind, kind)
    one, two = (
        job_of(tmp_path / name, source, dataParallel={"shards": 4, "replicas": n}) for name, n in (("one", 1), ("two", 2))
    )
    learn_the_same(one, two, monkeypatch)
    saved = SavedModel.load(tmp_path / "one" / "out")
    assert saved.model.config.model_type == kind
    ((line, _),) = saved.task.predict(saved, ["good good good"], Ticker(print))
    assert line.split("\t")[0] in ("neg", "pos")
    # What was saved is what was trained: its classes are those that evaluations counted.
    split = prepare(one.spec, Layout.of(one.spec).cache, print).splits["validation"]
    assert sum(len(labels) for _, labels in saved.outputs(split, 8)) == 32


def test_a_language_model_goes_on_with_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(tmp_path / "gpt_neox", "gpt_neox", AutoModelForCausalLM, eos_token_id=3, tie_word_embeddings=True)
    changes = {"model": {"task": "CausalLM"}, "dataset": {"label": None, "splits": {"validationFraction": 0.2}}}
    one, two = (
        job_of(tmp_path / name, source, dataParallel={"shards": 4, "replicas": n}, **changes)
        for name, n in (("one", 1), ("two", 2))
    )
    learn_the_same(one, two, monkeypatch)
    saved = SavedModel.load(tmp_path / "one" / "out")
    assert saved.model.get_input_embeddings().weight is saved.model.get_output_embeddings().weight
    assert saved.task.predict(saved, ["the movie"], Ticker(print))[0][0].startswith("the movie")


def test_a_masked_language_model_fills_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(tmp_path / "albert", "albert", AutoModelForMaskedLM)
    changes = {"model": {"task": "MaskedLM"}, "dataset": {"label": None, "splits": {"validationFraction": 0.2}}}
    one, two = (
        job_of(tmp_path / name, source, dataParallel={"shards": 4, "replicas": n}, **changes)
        for name, n in (("one", 1), ("two", 2))
    )
    learn_the_same(one, two, monkeypatch)
    saved = SavedModel.load(tmp_path / "one" / "out")
    ((line, _),) = saved.task.predict(saved, ["good [MASK] good"], Ticker(print))
    assert "[MASK]" not in line


def test_a_bare_model_gets_a_head_that_is_told_to_be_random(tmp_path: Path) -> None:
    from transformers import AutoModel

    source = make_source(tmp_path / "albert", "albert", AutoModel)
    job, line = job_of(tmp_path / "job", source), Line()
    assert make(job, line).run(view(1, start())).value == "Completed"
    told = [message for _, message, _ in line.events if "random" in message]
    assert told
    assert "classifier.weight" in told[0]


def test_the_check_knows_them(tmp_path: Path) -> None:
    source = make_source(tmp_path / "albert", "albert")
    summary = check(job_of(tmp_path / "job", source))
    assert (summary.layers, summary.parameters) == (1, stored_count(source))
    assert summary.parameters == sum(p.numel() for p in AutoModelForSequenceClassification.from_pretrained(source).parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pipeline": {"stages": 2}}, r"pipeline.stages 2: .* type albert is trained in one stage: .* cut: bert, distilbert, "),
        ({"lora": {}}, "model.lora is for models of type bert, distilbert, .*, not albert: leave it out"),
        ({"model": {"task": "CausalLM"}, "dataset": {"label": None}}, "model.task CausalLM is not for a model of type albert"),
        ({"dataset": {"maxLength": 41}}, "dataset.maxLength 41 is over the 40 tokens"),
    ],
)  # fmt: skip
def test_what_they_cannot(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(job_of(tmp_path / "job", make_source(tmp_path / "albert", "albert"), **changes))
