"""A model's weights: which files are read, what is said of others, and how those that somebody has become what a job begins with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.store.memory import MemoryStore
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from lmj_api.spec import Model
from lmj_trainer.errors import UserError
from lmj_trainer.fetched import fetch
from lmj_trainer.model.config import load_config, read_config
from lmj_trainer.model.partition import partition
from lmj_trainer.model.stage import Stage
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.state.weights import initialise
from lmj_trainer.store.port import Ref
from lmj_trainer.task.sequence_classification.heads import HEADS
from lmj_trainer.weight_files import lacking, not_a_folder

DOCS = Path(__file__).parents[3] / "docs" / "storage.md"
CONVERT = (
    "load it where you trust it, and save the model with save_pretrained, or its state_dict as model.safetensors with "
    "safetensors.torch.save_file"
)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]


@pytest.mark.parametrize(("names", "said"), [
    (["config.json", "model.safetensors", "pytorch_model.bin"], None),
    (["model.safetensors.index.json", "model-00001-of-00002.safetensors"], None),
    (["config.json"], "has no model.safetensors: save it with save_pretrained"),
    (["training_args.bin", "pytorch_model.bin"],
     f"has no model.safetensors, and pytorch_model.bin is a pickle, which runs code when it is loaded: {CONVERT}"),
    (["model.pt"], f"has no model.safetensors, and model.pt is a pickle, which runs code when it is loaded: {CONVERT}"),
    (["weights.safetensors"],
     "has no model.safetensors, but weights.safetensors: if these are the weights of its config.json, call them so"),
    (["a.safetensors", "b.safetensors"], "has no model.safetensors: save it with save_pretrained"),
    (["adapter_model.safetensors"], "has no model.safetensors: save it with save_pretrained"),
])  # fmt: skip
def test_a_folder_without_weights_that_are_read_says_what_to_do(names: list[str], said: str | None) -> None:
    assert lacking(names) == said


@pytest.mark.parametrize(("name", "said"), [
    ("w.pth", f"is a pickle, which runs code when it is loaded: {CONVERT}, beside config.json and the tokenizer's files, and name the folder"),
    ("w.safetensors", "is a file: put it beside config.json and the tokenizer's files, called model.safetensors, and name the folder"),
    ("w.zip", "is a file: name the folder, which save_pretrained wrote"),
])  # fmt: skip
def test_a_file_in_place_of_the_folder(name: str, said: str, tmp_path: Path) -> None:
    assert not_a_folder(name) == said
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=re.escape(f"model {tmp_path / name} {said}")):
        read_config(str(tmp_path / name), None)


@pytest.mark.parametrize(("source", "said"), [
    ("s3://models/bert", "has no model.safetensors, and pytorch_model.bin is a pickle"),
    ("s3://models/bert/pytorch_model.bin", "is a pickle, which runs code when it is loaded"),
])  # fmt: skip
def test_pickles_in_a_bucket_are_not_fetched(job: Any, source: str, said: str) -> None:
    store = MemoryStore()
    for name in ("config.json", "pytorch_model.bin"):
        store.put(f"bert/{name}", [b"{}"])
    spec = job(model__scratch=None, model__source=source).spec
    with pytest.raises(UserError, match=rf"^model.source {source}: {said}"):
        fetch(spec, lambda line: None, patience=0, open_=lambda uri: Ref(store))


def test_the_guides_way_from_a_pickle_to_a_model_that_a_job_begins_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, and as one or two stages."""
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(4)
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)
    model = BertForSequenceClassification(config)
    config.save_pretrained("bert-base-uncased")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained("bert-base-uncased")
    # As DistributedDataParallel names them.
    torch.save({f"module.{name}": value for name, value in model.state_dict().items()}, "weights.pt")

    section = DOCS.read_text().partition("## Begin with weights that you have\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(compile(example, str(DOCS), "exec"), {})

    spec = Model(source=str(tmp_path / "start"))
    loaded = load_config(spec, ["negative", "positive"], len(WORDS))
    expected, seen = dict(model.named_parameters()), set[str]()
    for layers in partition(2, 2):
        stage = Stage(loaded, HEADS, layers, seed=1)
        state = StageState(stage, torch.device("cpu"))
        assert initialise(stage, state, spec) == [], "nothing begins at random, not even the head"
        for slot in state.slots:
            name = slot.name
            assert torch.equal(slot.weight, expected[name].detach()), name
            seen.add(name)
    assert seen == expected.keys()
