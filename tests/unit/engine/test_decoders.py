"""Models whose tokens see only those before them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from lmj_api.layout import Layout
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.data.tokens import load_tokenizer
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.errors import UserError
from lmj_trainer.task.saved_model import SavedModel

from .small_job import Line, make, start, view
from .test_replicas import learn_the_same, of

pytestmark = pytest.mark.integration

WORDS = ["this", "one", "is", "good", "bad", *map(str, range(7))]


def with_model(job: LiveMigrationJob, **model: Any) -> LiveMigrationJob:
    document = job.model_dump(by_alias=True, mode="json")
    document["spec"]["model"] |= model
    return LiveMigrationJob.model_validate(document)


def scratch(job: LiveMigrationJob, architecture: str) -> LiveMigrationJob:
    return with_model(
        job, scratch={**job.spec.model.model_dump(by_alias=True, mode="json")["scratch"], "architecture": architecture}
    )


def saved_tokenizer(folder: Path, **special: str) -> None:
    """A tokenizer of whole words, which puts nothing around a text."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*WORDS, "</s>", "?"])}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "mistral", "qwen2"])
def test_stages_and_replicas_of_a_new_model_learn_what_one_process_does(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    one, four = (scratch(of(job, tmp_path / name, n, n), architecture) for name, n in (("one", 1), ("four", 2)))
    alone = learn_the_same(one, four, monkeypatch)
    # What was trained is what transformers computes with the saved model.
    saved = SavedModel.load(Path(one.spec.output.path))
    assert type(saved.model).__name__.endswith("ForSequenceClassification")
    split = prepare(one.spec, Layout.of(one.spec).cache, print).splits["validation"]
    hits = [outputs.argmax(1) == labels for outputs, labels in saved.outputs(split, 8)]
    assert float(torch.cat(hits).double().mean()) == max(alone.evaluated().values())


def test_a_tokenizer_without_padding_pads_with_the_end_of_a_text(job: LiveMigrationJob, tmp_path: Path) -> None:
    source = tmp_path / "source"
    saved_tokenizer(source, eos_token="</s>")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=len(WORDS) + 2, max_position_embeddings=16, pad_token_id=None, **sizes)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(source)
    job = with_model(job, scratch=None, source=str(source))
    assert make(job, Line()).run(view(1, start())).value == "Completed"
    saved = SavedModel.load(Path(job.spec.output.path))
    assert saved.tokenizer.pad_token == "</s>"
    assert saved.model.config.pad_token_id == saved.tokenizer.pad_token_id == len(WORDS)
    # Rows of several lengths beside each other: each is classified by its own last token.
    ids = saved.tokenizer(["this one is good", "bad"], padding=True, return_tensors="pt")
    with torch.inference_mode():
        together = saved.model(**{name: ids[name] for name in ("input_ids", "attention_mask")}).logits
        alone = saved.model(input_ids=ids["input_ids"][1:, :1]).logits
    assert torch.allclose(together[1], alone[0], atol=1e-6)


def test_a_tokenizer_with_neither(tmp_path: Path) -> None:
    saved_tokenizer(tmp_path)
    with pytest.raises(UserError, match="has no padding token"):
        load_tokenizer(str(tmp_path))


def test_what_adds_to_gpt2_s_residual_starts_smaller(make_config: Callable[..., Any], make_state: Callable[..., Any]) -> None:
    config = make_config("gpt2")
    _, state = make_state(config, range(3))
    spread = {name: float(slot.weight.std()) for slot in state.slots if (name := slot.name).endswith("mlp.c_proj.weight")}
    assert len(spread) == 3
    assert list(spread.values()) == pytest.approx([config.initializer_range / 6**0.5] * 3, rel=0.1)
