"""Low-rank adapters: what is trained, where its first values come from, and what is not part of the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.on_disk import load_state, write_tensors
from transformers import AutoModelForSequenceClassification
from transformers.pytorch_utils import Conv1D

from lmj_api.manifest import Manifest
from lmj_api.spec import Lora, Model
from lmj_trainer.checkpoint.write import MANIFEST
from lmj_trainer.errors import UserError
from lmj_trainer.model.families.registry import FAMILIES as PARTS
from lmj_trainer.model.lora import targets
from lmj_trainer.model.stage import Stage
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.state.weights import freeze, initialise
from lmj_trainer.task.sequence_classification.heads import HEADS

pytestmark = pytest.mark.integration

FAMILIES = ["bert", "distilbert", "roberta", "electra", "gpt2", "llama", "mistral", "qwen2"]
SCRATCH = Model.model_validate({"scratch": {}, "lora": {}})
CPU = torch.device("cpu")


def build(config: Any, layers: range, model: Model = SCRATCH) -> tuple[Stage, StageState]:
    stage = Stage(config, HEADS, layers, seed=3, lora=model.lora, source=model.source)
    freeze(stage, model, CPU)
    state = StageState(stage, CPU, identity="job")
    initialise(stage, state, model)
    return stage, state


def frozen(stage: Stage) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in stage.frozen_by_name()}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_linear_modules_of_a_layer_are_those_of_transformers(make_config, family: str) -> None:
    stage = Stage(make_config(family), HEADS, range(3), seed=1)
    start = f"{stage.family.layers}.0."
    there = [
        n.removeprefix(start) for n, m in stage.model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D) and start in n
    ]
    assert sorted(there) == sorted(PARTS[family].linear)


def test_unset_targets_are_queries_and_values() -> None:
    assert targets("electra", Lora()) == ["query", "value"]
    assert targets("distilbert", Lora()) == ["q_lin", "v_lin"]
    assert targets("qwen2", Lora()) == ["q_proj", "v_proj"]
    assert targets("gpt2", Lora()) == ["c_attn"], "all three in one"


@pytest.mark.parametrize(("family", "name", "near"), [("bert", "querry", "query"), ("distilbert", "query", ""), ("bert", "", "")])
def test_a_module_that_is_not_there(family: str, name: str, near: str) -> None:
    with pytest.raises(UserError) as caught:
        targets(family, Lora.model_construct(target_modules=[name]))
    text = str(caught.value)
    assert f"model.lora.targetModules {name!r} is no linear module of a {family} layer" in text
    assert "\n" not in text
    assert (f"did you mean {near}?" in text) == bool(near)


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", {"classifier"}),
        ("distilbert", {"pre_classifier", "classifier"}),
        ("roberta", {"classifier"}),
        ("electra", {"classifier"}),
        ("gpt2", {"score"}),
        ("llama", {"score"}),
    ],
)
def test_adapters_and_the_head_are_trained(make_config, family: str, head: set[str]) -> None:
    stage, state = build(make_config(family), range(3))
    names = {slot.name for slot in state.slots}
    assert {n.partition(".")[0] for n in names if ".lora_" not in n} == head
    assert all(".modules_to_save.default." in n for n in names if ".lora_" not in n)
    assert sum(".lora_A." in n for n in names) == sum(".lora_B." in n for n in names) == 3 * len(targets(family, Lora()))
    # No memory is kept for what does not change: not in the block, not for a gradient.
    assert state.size < sum(p.numel() for p in frozen(stage).values()) / 10
    assert all(p.grad is None and not p.requires_grad for _, p in stage.frozen_by_name())
    assert not any("original_module" in n for n, _ in stage.model.named_parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_first_weights_do_not_depend_on_the_cut_nor_on_adapters(make_config, make_state, family: str) -> None:
    config = make_config(family)
    whole, state = build(config, range(3))
    trained = {slot.name: slot.weight for slot in state.slots}
    for cut in (range(1), range(1, 2), range(2, 3)):
        part, own = build(config, cut)
        assert all(torch.equal(slot.weight, trained[slot.name]) for slot in own.slots)
        assert all(torch.equal(value, frozen(whole)[name]) for name, value in frozen(part).items())
        assert part.frozen.items() <= whole.frozen.items()
    _, plain = make_state(config, range(3))
    for slot in plain.slots:
        if slot.name in whole.frozen:
            at = whole.model.get_submodule(slot.name.rpartition(".")[0])
            value = getattr(getattr(at, "base_layer", at), slot.name.rpartition(".")[2])
        else:
            head, _, rest = slot.name.partition(".")
            value = trained[f"{head}.modules_to_save.default.{rest}"]
        assert torch.equal(value, slot.weight), slot.name
    assert all(weight.any() == (".lora_A." in name) for name, weight in trained.items() if ".lora_" in name)


@pytest.fixture
def saved(make_config, tmp_path: Path) -> Path:
    torch.manual_seed(11)
    AutoModelForSequenceClassification.from_config(make_config()).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_another_model_is_noticed_by_followers_and_checkpoints(make_config, saved: Path, tmp_path: Path) -> None:
    model = Model(source=str(saved), lora=Lora())
    _, state = build(make_config(), range(1, 2), model)
    folder = tmp_path / "step"
    folder.mkdir()
    file = write_tensors(folder / "rank-0.safetensors", state.tensors(), state.frozen)
    facts = {"job": "j", "state_digest": "0" * 32, "epoch": 1.0, "seconds": 1.0, "best": False}
    manifest = Manifest.model_validate({"view": 1, "step": 5, "files": [vars(file)], **facts})
    (folder / MANIFEST).write_text(manifest.to_json())
    _, same = build(make_config(), range(1, 2), model)
    assert same.layout == state.layout
    assert load_state(folder, same).step == same.step == 5

    path = saved / "model.safetensors"
    tensors = {name: value.clone() for name, value in load_file(path).items()}
    tensors["bert.encoder.layer.1.attention.self.key.weight"][0, 0] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    _, other = build(make_config(), range(1, 2), model)
    assert other.layout != state.layout
    with pytest.raises(UserError, match=r"layer\.1\.attention\.self\.key\.weight of model\.source is not what checkpoint step"):
        load_state(folder, other)
    # Layers that are the same are no reason to refuse it: but those of other stages are not in this checkpoint.
    _, elsewhere = build(make_config(), range(1), model)
    with pytest.raises(KeyError):
        load_state(folder, elsewhere)


def test_a_bare_encoder_s_pooler_is_told_as_random(make_config, saved: Path) -> None:
    path = saved / "model.safetensors"
    kept = {n: t.clone() for n, t in load_file(path).items() if not n.startswith(("bert.pooler.", "classifier."))}
    save_file(kept, path, metadata={"format": "pt"})
    model = Model(source=str(saved), lora=Lora())
    stage = Stage(make_config(), HEADS, range(2, 3), seed=3, lora=model.lora)
    assert freeze(stage, model, CPU) == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]
    assert initialise(stage, StageState(stage, CPU), model) == ["classifier.bias", "classifier.weight"]


def test_a_state_without_its_frozen_weights_is_refused(make_config) -> None:
    stage = Stage(make_config(), HEADS, range(3), seed=1, lora=Lora())
    with pytest.raises(RuntimeError, match="frozen weights"):
        StageState(stage, CPU)
