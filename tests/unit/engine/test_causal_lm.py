"""Language models: what is learned of which text, and that stages, replicas and adapters change no bit of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.trainer_pt_utils import LabelSmoother

from lmj_api.identity import differences, state_fields
from lmj_api.layout import Layout
from lmj_api.protocol import EventKind
from lmj_api.spec import LiveMigrationJob
from lmj_api.spec.dataset import Splits
from lmj_trainer import evaluate, predict
from lmj_trainer.check import check, check_model
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.data.packing import WHOLE, packed
from lmj_trainer.data.split import NO_LABEL, Split
from lmj_trainer.dataset.prepared import prepare, prepared_key
from lmj_trainer.errors import UserError
from lmj_trainer.strategy.pipeline import tied
from lmj_trainer.task.causal_lm.objective import TokenObjective
from lmj_trainer.task.causal_lm.texts import Ends, cut, following, joined, row
from lmj_trainer.task.saved_model import SavedModel
from lmj_trainer.task.sequence_classification.objective import TextObjective
from lmj_trainer.task.token_classification.objective import WordObjective

from .small_job import losses, start, weights
from .test_decoders import WORDS, saved_tokenizer
from .test_replicas import Workers, learn_the_same, of

ENDS = Ends([1], 2)


def as_language(job: LiveMigrationJob, **dataset: Any) -> LiveMigrationJob:
    document = job.model_dump(by_alias=True, mode="json")
    document["spec"]["model"] |= {"task": "CausalLM"}
    if document["spec"]["model"]["scratch"] is not None:
        document["spec"]["model"]["scratch"]["architecture"] = "llama"
    document["spec"]["dataset"] |= {"label": None, **dataset}
    return LiveMigrationJob.model_validate(document)


def tied_model(folder: Path, family: str) -> Path:
    """One with a table of tokens at both ends."""
    saved_tokenizer(folder, eos_token="</s>")
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": True}
    sizes |= {"n_inner": 32} if family == "gpt2" else {"intermediate_size": 32, "num_key_value_heads": 1}
    config = AutoConfig.for_model(
        family, vocab_size=len(WORDS) + 3, max_position_embeddings=16, bos_token_id=None, eos_token_id=len(WORDS), **sizes
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_a_text_is_learned_with_its_end_and_a_prompt_is_not() -> None:
    shortened = cut(row(ENDS, [7, 8], [9, 5, 6]), 4)
    assert shortened is not None
    split = joined([row(ENDS, [], [5, 6]), row(ENDS, [7, 8], [9]), shortened], 9)
    assert [split.row(i)[0].tolist() for i in range(3)] == [[1, 5, 6, 2], [1, 7, 8, 9, 2], [1, 7, 8, 9]]
    learned = following(split, np.arange(3), 6)
    none = NO_LABEL
    assert learned.tolist() == [[5, 6, 2, none, none, none], [none, none, 9, 2, none, none], [none, none, 9, none, none, none]]


@given(
    st.lists(st.tuples(st.lists(st.integers(3, 9), max_size=6), st.lists(st.integers(3, 9), min_size=1, max_size=6)), min_size=1)
)
def test_packing_loses_nothing_that_is_learned(texts: list[tuple[list[int], list[int]]]) -> None:
    whole = joined([row(ENDS, prompt, answer) for prompt, answer in texts], WHOLE)
    split = packed(whole, 5)
    assert split.max_length == 5
    assert all(1 < len(split.row(i)[0]) <= 5 for i in range(len(split)))
    blocks = [slice(begin, begin + 5) for begin in range(0, len(whole.input_ids), 5)]
    kept = [block for block in blocks if (whole.labels[block][1:] != NO_LABEL).any()]
    for place, block in enumerate(kept):
        assert split.row(place)[0].tolist() == whole.input_ids[block].tolist()
        part = slice(split.offsets[place], split.offsets[place + 1])
        assert split.labels[part].tolist() == whole.labels[block].tolist()
    assert len(split) == len(kept)


def test_packing_where_nothing_is_learned() -> None:
    assert len(packed(Split(np.arange(4, dtype=np.int32), None, np.array([0, 4]), np.full(4, NO_LABEL), WHOLE), 4)) == 0


@pytest.mark.integration
def test_a_long_text_is_packed_whole(job: LiveMigrationJob, tmp_path: Path) -> None:
    """It becomes several samples; without packing its end is cut off."""
    texts = [[WORDS[(place + number) % len(WORDS)] for place in range(10 * number + 1)] for number in range(3)]
    source = tmp_path / "long.csv"
    source.write_text("text\n" + "".join(" ".join(words) + "\n" for words in texts))
    model = tied_model(tmp_path / "source", "llama")
    tokens = {word: place for place, word in enumerate([*WORDS, "</s>"])}
    whole = [[tokens[word] for word in [*words, "</s>"]] for words in texts]
    for packing in (True, False):
        asked = as_language(job, packing=packing, maxLength=8, source=str(source), splits={}).spec
        asked = asked.model_copy(update={"model": asked.model.model_copy(update={"scratch": None, "source": str(model)})})
        split = prepare(asked, tmp_path / "cache", print).splits["train"]
        expected = [token for each in whole for token in (each if packing else each[:8])]
        assert split.input_ids.tolist() == split.labels.tolist() == expected
        assert [len(split.row(place)[0]) for place in range(len(split))] == ([8] * 4 + [4] if packing else [2, 8, 8])


@pytest.mark.integration
def test_rows_that_were_cut_before_they_were_packed_are_others(job: LiveMigrationJob) -> None:
    """As an earlier version packed them, whose key had a True: a run of it does not go on with these, and its rows are not taken for them."""
    spec = as_language(job, packing=True).spec
    assert prepared_key(spec)["packing"] == "whole texts"
    assert "packing" not in prepared_key(as_language(job).spec)
    assert state_fields(spec)["dataset"]["packed"] == "whole texts"
    assert "packed" not in state_fields(as_language(job).spec)["dataset"]
    assert not differences(spec, spec, finished=True)
    (difference,) = differences(as_language(job).spec, spec, finished=False)
    assert str(difference) == "dataset.packing False → True"


def test_loss_and_evaluation_are_those_of_transformers() -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    split = joined([row(ENDS, [3], [4, 5, 6]), row(ENDS, [], [7, 8])], 9)
    ids = torch.tensor([[1, 3, 4, 5, 6, 2], [1, 7, 8, 2, 0, 0]])
    mask = (ids != 0).long()
    # As transformers takes them: at the token itself, which it shifts.
    own = torch.tensor([[-100, -100, 4, 5, 6, 2], [-100, 7, 8, 2, -100, -100]])
    with torch.no_grad():
        theirs = model(input_ids=ids, attention_mask=mask, labels=own)
    learned, objective = torch.from_numpy(following(split, np.arange(2), 6)), TokenObjective()
    assert torch.allclose(objective.loss(theirs.logits, learned), theirs.loss)
    assert objective.samples(learned) == 7
    parts = [objective.counts(), objective.counts()]
    for number, part in enumerate(parts):
        part.add(number, theirs.logits[number : number + 1], learned[number : number + 1])
    parts[1].merge(parts[0].payload())
    result = objective.evaluation(parts[1], "validation", 3)
    assert (result.samples, result.f1, result.labels) == (7, None, [])
    assert result.loss == pytest.approx(float(theirs.loss), rel=1e-6)
    assert result.perplexity == pytest.approx(float(theirs.loss.exp()), rel=1e-6)
    assert result.score == -(result.loss or 0.0)
    right = (theirs.logits[:, :-1].argmax(-1) == own[:, 1:])[own[:, 1:] != -100]
    assert result.accuracy == float(right.double().mean())
    with pytest.raises(ValueError, match="no token of test"):
        objective.evaluation(objective.counts(), "test", 1)


@pytest.mark.integration
@pytest.mark.parametrize("dataset", [{}, {"packing": True}, {"text": ["label", "text"]}])
def test_stages_and_replicas_learn_what_one_process_does(
    job: LiveMigrationJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dataset: dict[str, Any],
) -> None:
    # As many rows as a step takes, although they are longer.
    one, four = (
        as_language(of(job, tmp_path / name, n, n), **{"maxLength": 10, **dataset}) for name, n in (("one", 1), ("four", 2))
    )
    alone = learn_the_same(one, four, monkeypatch)
    told = [details["evaluation"] for _, details in alone.of(EventKind.EVALUATED) if details["evaluation"].split == "validation"]
    best = [details["evaluation"].step for _, details in alone.of(EventKind.EVALUATED) if details["best"]][-1]
    assert best == min(told, key=lambda e: e.loss).step
    # The saved model is one of transformers, and says what was said of it.
    output = Path(one.spec.output.path)
    saved = SavedModel.load(output)
    assert type(saved.model).__name__ == "LlamaForCausalLM"
    split = prepare(one.spec, Layout.of(one.spec).cache, print).splits["validation"]
    counts = TokenObjective().counts()
    for number, (logits, following_tokens) in enumerate(saved.outputs(split, 8)):
        counts.add(number, logits, following_tokens)
    again = TokenObjective().evaluation(counts, "validation", best)
    assert again.loss == pytest.approx(min(e.loss for e in told), rel=1e-5)
    assert predict.main([str(output), "this one is", "this"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("this one is ")
    assert len(said) == 2
    assert evaluate.main([str(output), one.spec.dataset.source]) == 0
    said = capsys.readouterr().out
    assert "perplexity" in said
    every_row = one.spec.model_copy(update={"dataset": one.spec.dataset.model_copy(update={"splits": Splits()})})
    rows = prepare(every_row, tmp_path / "cache", print).splits["train"]
    learned = sum(int((rows.labels[a + 1 : b] != NO_LABEL).sum()) for a, b in pairwise(rows.offsets))
    assert said.startswith(f"{learned} samples: ")
    assert "| split | step | samples | loss | accuracy | perplexity |" in (output / "model" / "README.md").read_text()


@pytest.mark.integration
@pytest.mark.parametrize("lora", [{}, None])
@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_a_model_with_one_table_at_both_ends(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, lora: dict[str, Any] | None
) -> None:
    monkeypatch.setattr(tied, "_SPAN", 100)  # several messages, and more than go at once
    source = tied_model(tmp_path / "source", family)
    made = []
    for name, n in (("one", 1), ("four", 2)):
        document = of(job, tmp_path / name, n, n).model_dump(by_alias=True, mode="json")
        document["spec"]["model"] |= {"scratch": None, "source": str(source), "lora": lora, "dropout": 0.0}
        made.append(as_language(LiveMigrationJob.model_validate(document)))
    one, four = made
    learn_the_same(one, four, monkeypatch)
    saved = SavedModel.load(Path(one.spec.output.path)).model
    assert saved.lm_head.weight is saved.get_input_embeddings().weight
    before = AutoModelForCausalLM.from_pretrained(source).lm_head.weight
    assert torch.equal(saved.lm_head.weight, before) is (lora is not None)
    assert "lm_head.weight" not in weights(one)


@pytest.mark.integration
def test_models_that_cannot_be_trained_so(job: LiveMigrationJob) -> None:
    document = as_language(job).model_dump(by_alias=True, mode="json")
    document["spec"]["model"]["scratch"]["architecture"] = "bert"
    with pytest.raises(
        UserError, match=r"model.task CausalLM is not for a model of type bert: use one of gpt2, llama, mistral, qwen2"
    ):
        check_model(LiveMigrationJob.model_validate(document).spec)


@pytest.mark.integration
def test_what_is_said_of_a_job_beforehand_counts_packed_rows(job: LiveMigrationJob) -> None:
    job = as_language(job, packing=True, maxLength=16)
    summary = check(job)
    prepared = prepare(job.spec, Layout.of(job.spec).cache, print)
    assert summary.rows == {name: len(split) for name, split in prepared.splits.items()}
    assert summary.rows["train"] < 64
    assert summary.labels == []


@pytest.mark.integration
def test_a_row_whose_prompt_leaves_no_room(job: LiveMigrationJob) -> None:
    job = as_language(job, text=["text", "label"], maxLength=4)
    with pytest.raises(UserError, match=r"row \d+ of .*data.csv has nothing to learn within 4 tokens"):
        prepare(job.spec, Layout.of(job.spec).cache, print)


@pytest.mark.parametrize(
    ("model", "dataset", "message"),
    [
        ({}, {"label": "label"}, "dataset.label: model.task CausalLM has no labels: leave it out"),
        ({"labels": ["a", "b"]}, {}, "model.labels: model.task CausalLM has no labels: leave it out"),
        ({"task": "SequenceClassification"}, {}, "dataset.label is missing: name the column of the label"),
        ({"task": "SequenceClassification"}, {"label": "label", "packing": True}, "dataset.packing is for model.task CausalLM"),
    ],
)
def test_labels_go_with_the_task(job: LiveMigrationJob, model: dict[str, Any], dataset: dict[str, Any], message: str) -> None:
    document = as_language(job).model_dump(by_alias=True, mode="json")
    document["spec"]["model"] |= model
    document["spec"]["dataset"] |= dataset
    with pytest.raises(ValidationError, match=message):
        LiveMigrationJob.model_validate(document)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_are_smoothed_as_transformers_does_it(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))
    labels[0, 2:] = NO_LABEL
    theirs = LabelSmoother(epsilon=smoothing)({"logits": logits}, labels)
    assert torch.allclose(TokenObjective(smoothing).loss(logits, labels), theirs)
    assert torch.allclose(WordObjective(["a"], smoothing).loss(logits, labels), theirs)
    of_texts = LabelSmoother(epsilon=smoothing)({"logits": logits[:, 0]}, labels[:, 0])
    assert torch.allclose(TextObjective(["a"], smoothing).loss(logits[:, 0], labels[:, 0]), of_texts)


@pytest.mark.integration
def test_smoothing_changes_what_is_learned_and_is_part_of_the_run(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, digests = [], set()
    for smoothing in (0.0, 0.2):
        document = as_language(of(job, tmp_path / str(smoothing), 1)).model_dump(by_alias=True, mode="json")
        document["spec"]["training"] |= {"labelSmoothing": smoothing, "maxSteps": 3}
        smoothed = LiveMigrationJob.model_validate(document)
        Workers(smoothed, monkeypatch).run(start())
        found.append(losses(smoothed))
        digests.add(state_digest(smoothed.spec))
    assert found[0][0] != found[1][0]
    assert len(digests) == 2


def test_smoothing_is_not_for_every_task(job: LiveMigrationJob) -> None:
    document = job.model_dump(by_alias=True, mode="json")
    document["spec"]["model"]["task"] = "Regression"
    document["spec"]["training"]["labelSmoothing"] = 0.1
    with pytest.raises(ValidationError, match=r"training.labelSmoothing: the loss of model.task Regression is no cross entropy"):
        LiveMigrationJob.model_validate(document)
