import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification

from lmj_api.spec import Architecture, Model, Scratch
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.model.config import layer_count, load_config, max_positions
from lmj_trainer.model.head import Heads
from lmj_trainer.model.partition import partition
from lmj_trainer.model.sizes import sizes_of
from lmj_trainer.task.causal_lm.heads import HEADS as CAUSAL
from lmj_trainer.task.masked_lm.heads import HEADS as MASKED
from lmj_trainer.task.sequence_classification.heads import HEADS

LABELS = ["a", "b", "c"]


@pytest.mark.parametrize("architecture", list(Architecture))
def test_scratch_models_of_every_family(architecture: Architecture) -> None:
    scratch = Scratch(
        architecture=architecture, layers=3, hidden_size=16, heads=2, intermediate_size=24, max_positions=40, dropout=0.2
    )
    config = load_config(Model(scratch=scratch), LABELS, 50)
    assert config.model_type == architecture
    assert layer_count(config) == 3
    assert max_positions(config) == 40
    assert (config.num_labels, config.id2label[2], config.label2id["c"]) == (3, "c", 2)
    model = AutoModelForSequenceClassification.from_config(config)
    # ELECTRA and RoBERTa name and place their last dropout differently; all of them follow the setting.
    rates = {module.p for module in model.modules() if type(module).__name__ == "Dropout"}
    # Llama and its kin have that of attention alone, which is no module.
    assert rates == {0.2} or (not rates and config.attention_dropout == 0.2)
    counted = sum(p.numel() for p in model.parameters())
    sizes = sizes_of(config, HEADS)
    assert abs(sizes.total - counted) / counted < 0.05
    assert sum(sizes.of(layers) for layers in partition(3, 2)) == sizes.total


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("architecture", "heads"), [("bert", MASKED), ("gpt2", CAUSAL), ("llama", CAUSAL)])
def test_a_table_that_is_tied_is_on_the_first_stage_and_on_the_last(architecture: str, heads: Heads, tied: bool) -> None:
    scratch = Scratch(architecture=Architecture(architecture), layers=3, hidden_size=16, heads=2, intermediate_size=24)
    config = load_config(Model(scratch=scratch), LABELS, 50)
    config.tie_word_embeddings = tied
    sizes, table = sizes_of(config, heads), config.vocab_size * 16
    assert sizes.of(range(3)) == sizes.total
    assert sum(sizes.of(layers) for layers in partition(3, 3)) == sizes.total + table * tied
    config.tie_word_embeddings = not tied
    assert sizes_of(config, heads).total == sizes.total + (table if tied else -table)


def test_a_pretrained_folder(pretrained: Path) -> None:
    config = load_config(Model(source=str(pretrained), dropout=0.0), LABELS, 30522)
    assert (layer_count(config), max_positions(config), config.num_labels) == (6, 512, 3)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.0, 0.0)
    # The next one is not touched by the changes to this one.
    assert load_config(Model(source=str(pretrained)), LABELS, 30522).hidden_dropout_prob == 0.1


def test_robertas_positions_begin_after_the_padding(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1})
    )
    assert max_positions(load_config(Model(source=str(tmp_path)), LABELS, 10)) == 512


def test_a_tokenizer_of_another_model_is_refused(pretrained: Path) -> None:
    with pytest.raises(UserError, match="knows 30522 tokens, its tokenizer 30523"):
        load_config(Model(source=str(pretrained)), LABELS, 30523)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is a folder without a config.json"),
        ({"model_type": "t6"}, "is of type 't6', which transformers does not have: use one of bert, distilbert"),
        ({}, "is of type None"),
        ("{no", "config.json cannot be read"),
    ],
)
def test_folders_that_hold_no_model(tmp_path: Path, content: Any, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=message) as raised:
        load_config(Model(source=str(tmp_path)), LABELS, 10)
    assert "\n" not in str(raised.value)


def test_a_missing_folder_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "bert-small").mkdir()
    with pytest.raises(UserError, match=r"no model .*bert-smal: there is no such folder; did you mean bert-small\?"):
        load_config(Model(source=str(tmp_path / "bert-smal")), LABELS, 10)


def test_a_hub_id_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr("lmj_trainer.model.config.hub_is_reachable", lambda: False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    says = "no model nobody/bert: there is no such file or folder, the hub cannot be reached, and it is not in the hub's cache"
    with pytest.raises(OutageError, match=says) as raised:
        load_config(Model(source="nobody/bert"), LABELS, 10)
    assert "\n" not in str(raised.value)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # who says that there is no hub has to have the model
    with pytest.raises(UserError, match=says):
        load_config(Model(source="nobody/bert"), LABELS, 10)
