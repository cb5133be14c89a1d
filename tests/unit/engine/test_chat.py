"""Conversations: what of them is learned, and what the trained model answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from lmj_api.spec import LiveMigrationJob
from lmj_trainer import evaluate, predict
from lmj_trainer.data.files import read_rows
from lmj_trainer.data.messages import kind
from lmj_trainer.data.packing import WHOLE
from lmj_trainer.data.split import NO_LABEL
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.errors import UserError
from lmj_trainer.task.causal_lm.chat import Chat
from lmj_trainer.task.causal_lm.task import CausalLM
from lmj_trainer.task.sequence_classification.task import SequenceClassification
from lmj_trainer.task.token_classification.task import TokenClassification

from .test_replicas import learn_the_same, of

WORDS = ["<s>", "</s>", "<user>", "<assistant>", "<system>", "one", "two", "three", "and", "be", "short", "?"]
TEMPLATE = (
    "<s>{% for m in messages %}<{{ m.role }}> {% if m.role == 'assistant' %}{% generation %}{{ m.content }} </s>{% endgeneration %}"
    "{% else %}{{ m.content }} </s>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}{% if loop.last or m.role == 'user' %}<{{ m.role }}> {{ m.content }} </s>{% endif %}{% endfor %}"
)
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}" + TEMPLATE


def tokenizer(template: str | None = TEMPLATE) -> Any:
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    special = {"bos_token": "<s>", "eos_token": "</s>", "extra_special_tokens": ["<user>", "<assistant>", "<system>"]}
    fast = PreTrainedTokenizerFast(tokenizer_object=made, **special)
    fast.chat_template = template
    return fast


def said(role: str, content: str, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


LONG = [
    said("system", "be short"),
    said("user", "one and"),
    said("assistant", "two"),
    said("user", "two and"),
    said("assistant", "three"),
]
ROWS = [
    {"talk": [said("user", f"{a} and"), said("assistant", b)]}
    for a, b in [("one", "two"), ("two", "three"), ("three", "one")] * 30
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_what_the_assistant_says_is_learned_with_its_end() -> None:
    fast = tokenizer()
    tokens, learned = Chat(fast).row(LONG)
    assert [WORDS[t] for t, yes in zip(tokens, learned, strict=True) if yes] == ["two", "</s>", "three", "</s>"]
    # As transformers says it, where a template has marks for that.
    theirs = fast.apply_chat_template(LONG, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    assert (tokens, learned) == (theirs["input_ids"], [bool(mask) for mask in theirs["assistant_masks"]])


def test_columns_of_conversations_are_read_from_all_files(tmp_path: Path) -> None:
    rows = [{"talk": [said("user", "one", name="Ada"), said("assistant", "two")]}, {"talk": LONG}]
    found = [read_rows(written(tmp_path / "rows.jsonl", rows), ["talk"], None)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    found.append(read_rows(tmp_path / "rows.parquet", ["talk"], None))
    for each in found:
        assert each.texts[0].type == kind()
        assert each.texts[0].to_pylist() == [[said("user", "one"), said("assistant", "two")], LONG]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"talk": "one"}, "row 2 of .*: column 'talk' is not a list of messages, as in other rows, but \"one\""),
        ({"talk": [{"role": "user"}]}, "row 2 of .*: column 'talk' is not a list of messages"),
        ({"talk": [said("user", "one")]}, "row 2 of .* has no message of the role 'assistant' in column 'talk': leave it out"),
        ({"talk": None}, "row 2 of .* has no message of the role 'assistant'"),
        ({"talk": []}, "row 2 of .* has no message of the role 'assistant'"),
    ],
)
def test_rows_of_which_nothing_is_learned(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    path = written(tmp_path / "rows.jsonl", [ROWS[0], row])
    with pytest.raises(UserError, match=problem):
        CausalLM().check(read_rows(path, ["talk"], None), print)


def test_other_tasks_have_no_conversations(tmp_path: Path) -> None:
    rows = read_rows(written(tmp_path / "rows.jsonl", ROWS), ["talk"], None)
    with pytest.raises(UserError, match=r"column 'talk' of .* holds conversations, not text"):
        SequenceClassification().check(rows, print)
    with pytest.raises(UserError, match=r"column 'talk' of .* holds conversations, not words"):
        TokenClassification().check(rows, print)
    both = read_rows(written(tmp_path / "both.jsonl", [{**row, "text": "one"} for row in ROWS]), ["talk", "text"], None)
    with pytest.raises(UserError, match=r"dataset.text names 2 columns, of which one has conversations: give that alone"):
        CausalLM().check(both, print)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, r"the tokenizer has no template for conversations \(chat_template\)"),
        (
            FORGETFUL,
            "row 1 of .* the tokenizer's template writes a message another way when others follow: give each answer a row",
        ),
        (STRICT, "row 1 of .* the tokenizer's template does not take it: no system messages"),
    ],
)
def test_templates_that_do_not_do(tmp_path: Path, template: str | None, problem: str) -> None:
    rows, task = read_rows(written(tmp_path / "rows.jsonl", [{"talk": LONG}]), ["talk"], None), CausalLM()
    with pytest.raises(UserError, match=problem):
        task.encode(tokenizer(template), rows, task.ids(rows, task.labels(rows, None, None)), 32, False, Ticker(print), "it")


def test_an_answer_that_is_cut_off_is_told(tmp_path: Path) -> None:
    rows, task = read_rows(written(tmp_path / "rows.jsonl", ROWS), ["talk"], None), CausalLM()
    with pytest.raises(UserError, match=r"row 1 of .* has nothing to learn within 4 tokens"):
        task.encode(tokenizer(), rows, task.ids(rows, task.labels(rows, None, None)), 4, False, Ticker(print), "it")
    mute = TEMPLATE.replace("{{ m.content }} </s>{% endgeneration %}", "{% endgeneration %}")
    with pytest.raises(UserError, match=r"row 1 of .* has nothing to learn: leave the row out$"):
        task.encode(tokenizer(mute), rows, task.ids(rows, task.labels(rows, None, None)), WHOLE, False, Ticker(print), "it")


@pytest.mark.integration
def test_stages_and_replicas_learn_what_one_process_does_and_the_model_answers(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "llama"
    fast = tokenizer()
    fast.save_pretrained(source)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model(
        "llama", vocab_size=len(fast), bos_token_id=0, eos_token_id=1, max_position_embeddings=32, **sizes
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(source)
    data = written(tmp_path / "talk.jsonl", ROWS)

    def talks(folder: Path, replicas: int) -> LiveMigrationJob:
        document = of(job, folder, replicas, replicas).model_dump(by_alias=True, mode="json")
        document["spec"]["model"] |= {"task": "CausalLM", "scratch": None, "source": str(source)}
        document["spec"]["dataset"] |= {"source": str(data), "text": ["talk"], "label": None, "maxLength": 16}
        document["spec"]["training"] |= {"epochs": 12, "learningRate": 0.02}
        return LiveMigrationJob.model_validate(document)

    one, four = (talks(tmp_path / name, n) for name, n in (("one", 1), ("four", 2)))
    learn_the_same(one, four, monkeypatch)
    split = prepare(one.spec, tmp_path / "cache", print).splits["train"]
    assert (split.labels != NO_LABEL).sum() == 2 * len(split), "a word and its end"
    output = Path(one.spec.output.path)
    assert predict.main([str(output), "--chat", "one and", "two and"]) == 0
    assert capsys.readouterr().out.split("\n")[:2] == ["one and two", "two and three"]
    assert evaluate.main([str(output), str(data)]) == 0
    assert "accuracy 1.0000" in capsys.readouterr().out
