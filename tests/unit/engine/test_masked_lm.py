"""Masked language models: which tokens are hidden, and that stages, replicas and adapters change no bit of what is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoConfig, AutoModelForMaskedLM, BertTokenizerFast

from lmj_api.layout import Layout
from lmj_api.protocol import EventKind
from lmj_api.spec import LiveMigrationJob
from lmj_trainer import evaluate, predict
from lmj_trainer.check import check, check_model
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.data.batch import Batch
from lmj_trainer.data.masking import Masking
from lmj_trainer.data.split import NO_LABEL
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.errors import UserError
from lmj_trainer.model.config import load_config
from lmj_trainer.model.stage import Place
from lmj_trainer.strategy.batches import Batches
from lmj_trainer.strategy.pipeline import tied
from lmj_trainer.task.masked_lm.task import filled
from lmj_trainer.task.saved_model import SavedModel

from .small_job import weights
from .test_decoders import WORDS, saved_tokenizer
from .test_replicas import learn_the_same, of

ENCODERS = ["bert", "distilbert", "electra", "roberta"]
MASK, VOCABULARY = 4, 50


def as_masked(job: LiveMigrationJob, model: dict[str, Any] | None = None, **dataset: Any) -> LiveMigrationJob:
    document = job.model_dump(by_alias=True, mode="json")
    document["spec"]["model"] |= {"task": "MaskedLM", **(model or {})}
    document["spec"]["dataset"] |= {"label": None, **dataset}
    return LiveMigrationJob.model_validate(document)


def batch_of(tokens: list[list[int]]) -> Batch:
    """Of equal lengths; the first token of each row is never hidden."""
    ids = np.array(tokens, np.int64)
    labels = ids.copy()
    labels[:, 0] = NO_LABEL
    return Batch(ids, np.ones_like(ids), None, labels)


@given(
    st.lists(st.integers(5, VOCABULARY - 1), min_size=2, max_size=40),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32 - 1),
    st.integers(0, 10**6),
)
def test_a_part_of_the_tokens_is_learned(tokens: list[int], part: float, seed: int, step: int) -> None:
    before, masking = batch_of([tokens]), Masking(seed, part, MASK, VOCABULARY)
    after = masking.hidden(before, [(step, 0)])
    learned = after.labels[0] != NO_LABEL
    assert learned.sum() == max(1, round((len(tokens) - 1) * part))
    assert not learned[0]
    assert (after.labels[0][learned] == before.input_ids[0][learned]).all()
    assert (after.input_ids[0][~learned] == before.input_ids[0][~learned]).all(), "what is not learned is read as it is"
    assert (masking.targets(before.labels, [(step, 0)]) == after.labels).all()
    assert before.input_ids[0].tolist() == tokens, "the split stays as it is"


def test_hidden_tokens_are_read_as_bert_does() -> None:
    """Eight in ten as the mask, one in ten as any token, one in ten as they are; another way at each place, and with each seed."""
    masking, token = Masking(7, 0.15, MASK, VOCABULARY), VOCABULARY + 1
    read: list[int] = []
    where = set()
    for step in range(100):
        after = masking.hidden(batch_of([[1] + [token] * 100] * 2), [(step, 0), (step, 1)])
        learned = after.labels != NO_LABEL
        assert learned.sum(1).tolist() == [15, 15]
        read += after.input_ids[learned].tolist()
        where |= {tuple(row.nonzero()[0]) for row in learned}
    assert len(where) == 200, "each row of each step has its own"
    found = np.array(read)
    masked, kept = (found == MASK).mean(), (found == token).mean()
    # 3,000 draws: six deviations.
    assert abs(masked - (0.8 + 0.1 / VOCABULARY)) < 0.045
    assert abs(kept - 0.1) < 0.033
    others = found[(found != MASK) & (found != token)]
    assert set(others.tolist()) == set(range(VOCABULARY)) - {MASK}
    again = Masking(8, 0.15, MASK, VOCABULARY).hidden(batch_of([[1] + [token] * 100]), [(0, 0)])
    first = masking.hidden(batch_of([[1] + [token] * 100]), [(0, 0)])
    assert (again.labels != first.labels).any()


def test_the_draws_stay_what_they_are() -> None:
    """A run may be gone on with by a later version: these numbers are its contract."""
    after = Masking(7, 0.3, MASK, VOCABULARY).hidden(batch_of([list(range(10, 20))]), [(3, 5)])
    assert after.input_ids[0].tolist() == [10, 4, 12, 13, 14, 15, 4, 17, 18, 19]
    assert after.labels[0].tolist() == [-100, 11, 12, -100, -100, -100, 16, -100, -100, -100]


@pytest.mark.integration
def test_a_step_is_one_whoever_computes_it_and_evaluations_are_all_the_same(job: LiveMigrationJob, tmp_path: Path) -> None:
    one, four = as_masked(of(job, tmp_path / "a", 1, 1)), as_masked(of(job, tmp_path / "b", 1, 1))
    prepared = prepare(one.spec, Layout.of(one.spec).cache, print)
    batches = Batches(prepared, one.spec, torch.device("cpu"))
    rows = np.arange(6)
    whole = batches.inputs("train", rows, Place(3, 0))
    parts = [batches.inputs("train", rows[:2], Place(3, 0)), batches.inputs("train", rows[2:], Place(3, 1, first=2))]
    assert torch.equal(whole.labels, torch.cat([part.labels for part in parts]))
    assert torch.equal(whole.input_ids, torch.cat([part.input_ids for part in parts]))
    assert not torch.equal(whole.labels, batches.inputs("train", rows, Place(4, 0)).labels)
    width = whole.labels.shape[1]
    assert torch.equal(batches.targets("train", rows, Place(3, 0))[:, :width], whole.labels)
    some = batches.inputs("validation", rows[3:5])
    assert torch.equal(batches.inputs("validation", rows).labels[3:5], some.labels), "by the number of the row"
    assert state_digest(one.spec) == state_digest(four.spec)


@pytest.mark.integration
@pytest.mark.parametrize("family", ENCODERS)
def test_stages_and_replicas_learn_what_one_process_does(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    """From random weights: both ends begin with one table, and have one in the end."""
    from transformers import pipeline  # all of its kinds, of pictures and sounds too

    monkeypatch.setattr(tied, "_SPAN", 100)
    one, four = (as_masked(of(job, tmp_path / name, n, n), maxLength=10) for name, n in (("one", 1), ("four", 2)))
    made = []
    for each in (one, four):
        document = each.model_dump(by_alias=True, mode="json")
        document["spec"]["model"]["scratch"]["architecture"] = family
        made.append(LiveMigrationJob.model_validate(document))
    one, four = made
    alone = learn_the_same(one, four, monkeypatch)
    told = [details["evaluation"] for _, details in alone.of(EventKind.EVALUATED) if details["evaluation"].split == "validation"]
    assert all(e.perplexity == pytest.approx(np.exp(e.loss)) for e in told)
    best = min(told, key=lambda e: e.loss)
    assert [d["evaluation"].step for _, d in alone.of(EventKind.EVALUATED) if d["best"]][-1] == best.step
    assert best.loss < told[0].loss or len(told) == 1
    output = Path(one.spec.output.path)
    saved = SavedModel.load(output)
    assert saved.model.get_output_embeddings().weight is saved.model.get_input_embeddings().weight
    assert type(saved.model).__name__.endswith("ForMaskedLM")
    assert not any("decoder" in name or name == "vocab_projector.weight" for name in weights(one))
    # The saved model says of the same hidden tokens what was said while it was trained.
    validation = prepare(one.spec, Layout.of(one.spec).cache, print).splits["validation"]
    masking = Masking(one.spec.training.seed, 0.15, saved.tokenizer.mask_token_id, len(saved.tokenizer))
    objective = saved.task.objective((), {})
    counts = objective.counts()
    for number, (logits, learned) in enumerate(saved.outputs(validation, 8, masking)):
        counts.add(number, logits, learned)
    again = objective.evaluation(counts, "validation", best.step)
    assert again.samples == best.samples
    assert again.loss == pytest.approx(best.loss, rel=1e-5)
    assert predict.main([str(output), "this one is [MASK]", "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["gaps"]) == 1
    theirs = pipeline("fill-mask", model=saved.model, tokenizer=saved.tokenizer, top_k=5)("this one is [MASK]")
    assert [c["token"] for c in said["gaps"][0]] == [each["token_str"] for each in theirs]
    assert [c["probability"] for c in said["gaps"][0]] == pytest.approx([each["score"] for each in theirs], rel=1e-4)
    assert evaluate.main([str(output), one.spec.dataset.source]) == 0
    assert "perplexity" in capsys.readouterr().out
    card = (output / "model" / "README.md").read_text()
    assert "fill-mask" in card
    assert "| split | step | samples | loss | accuracy | perplexity |" in card


def pretrained(folder: Path) -> Path:
    folder.mkdir()
    (folder / "words.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    BertTokenizerFast(vocab=str(folder / "words.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = AutoConfig.for_model("bert", vocab_size=len(WORDS) + 5, max_position_embeddings=24, **sizes)
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.integration
@pytest.mark.parametrize("lora", [{}, None])
def test_a_pretrained_model_and_adapters(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: dict[str, Any] | None
) -> None:
    source = pretrained(tmp_path / "source")
    model = {"scratch": None, "source": str(source), "lora": lora, "dropout": 0.0}
    one, four = (as_masked(of(job, tmp_path / name, n, n), model) for name, n in (("one", 1), ("four", 2)))
    learn_the_same(one, four, monkeypatch)
    saved = SavedModel.load(Path(one.spec.output.path)).model
    assert saved.cls.predictions.decoder.weight is saved.get_input_embeddings().weight
    assert saved.cls.predictions.decoder.bias is saved.cls.predictions.bias
    before = AutoModelForMaskedLM.from_pretrained(source)
    changed = {n for n, p in before.named_parameters() if not torch.equal(p, saved.get_parameter(n))}
    assert ("cls.predictions.bias" in changed) is (lora is None)
    assert any("query" in name for name in changed)


@pytest.mark.integration
def test_what_is_said_of_a_job_beforehand(job: LiveMigrationJob) -> None:
    job = as_masked(job)
    summary = check(job)
    prepared = prepare(job.spec, Layout.of(job.spec).cache, print)
    assert summary.labels == []
    document = job.model_dump(by_alias=True, mode="json")
    vocabulary = document["spec"]["model"]["scratch"]["vocabulary"]
    config = load_config(job.spec.model, [], vocabulary)
    whole = AutoModelForMaskedLM.from_config(config)
    assert summary.parameters == pytest.approx(sum(p.numel() for p in whole.parameters()), rel=0.05)
    assert prepared.mask_id == 4
    document["spec"]["model"]["scratch"]["architecture"] = "llama"
    with pytest.raises(UserError, match=r"model.task MaskedLM is not for a model of type llama: use one of bert, distilbert"):
        check_model(LiveMigrationJob.model_validate(document).spec)


@pytest.mark.integration
def test_a_tokenizer_without_a_mask_and_a_row_of_which_nothing_can_be_hidden(job: LiveMigrationJob, tmp_path: Path) -> None:
    source = pretrained(tmp_path / "source")
    (tmp_path / "rows.csv").write_text("text\nthis one is good\nxyzzy\n")
    asked = as_masked(job, {"scratch": None, "source": str(source)}, source=str(tmp_path / "rows.csv"), splits={})
    with pytest.raises(UserError, match=r"row 2 of .*rows.csv has no token that the tokenizer knows"):
        prepare(asked.spec, tmp_path / "cache", print)
    saved_tokenizer(tmp_path / "bare", pad_token="?")
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(source)).save_pretrained(tmp_path / "bare")
    asked = as_masked(job, {"scratch": None, "source": str(tmp_path / "bare")})
    with pytest.raises(UserError, match="the tokenizer has no token for a hidden one"):
        prepare(asked.spec, tmp_path / "cache", print)


def test_a_gap_is_filled_where_it_is() -> None:
    assert filled("A [MASK] of [MASK].", "[MASK]", ["cup", "tea"]) == "A cup of tea."
    assert filled("two cup [MASK]", "[MASK]", ["##s"]) == "two cups"


@pytest.mark.parametrize(
    ("model", "dataset", "message"),
    [
        ({}, {"label": "label"}, "dataset.label: model.task MaskedLM has no labels: leave it out"),
        ({"labels": ["a", "b"]}, {}, "model.labels: model.task MaskedLM has no labels: leave it out"),
        ({}, {"packing": True}, "dataset.packing is for model.task CausalLM"),
        ({}, {"text": ["text", "label"]}, "dataset.text: model.task MaskedLM takes one column of texts"),
        ({"task": "CausalLM"}, {"mlmProbability": 0.2}, "dataset.mlmProbability is for model.task MaskedLM"),
    ],
)
def test_fields_go_with_the_task(job: LiveMigrationJob, model: dict[str, Any], dataset: dict[str, Any], message: str) -> None:
    document = as_masked(job).model_dump(by_alias=True, mode="json")
    document["spec"]["model"] |= model
    document["spec"]["dataset"] |= dataset
    with pytest.raises(ValidationError, match=message):
        LiveMigrationJob.model_validate(document)


def test_how_many_are_hidden_is_part_of_the_run(job: LiveMigrationJob) -> None:
    digests = [state_digest(as_masked(job, mlmProbability=part).spec) for part in (None, 0.15, 0.3)]
    assert digests[0] == digests[1] != digests[2]
