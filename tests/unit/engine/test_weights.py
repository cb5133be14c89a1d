"""Where the first weights come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification

from lmj_api.spec import Model
from lmj_trainer.errors import UserError
from lmj_trainer.model.stage import Stage
from lmj_trainer.task.sequence_classification.heads import HEADS

FAMILIES = ["bert", "distilbert", "roberta", "electra", "gpt2", "llama", "mistral", "qwen2"]
HEADS_OF = {"roberta": "classifier.dense", "electra": "classifier.dense", **dict.fromkeys(FAMILIES[4:], "score")}
CUTS = [range(1), range(1, 2), range(2, 3)]


def weights(make_state, config, cuts, model=None, seed: int = 3) -> dict[str, torch.Tensor]:
    extra = {} if model is None else {"model": model}
    states = [make_state(config, cut, seed=seed, **extra)[1] for cut in cuts]
    return {slot.name: slot.weight for state in states for slot in state.slots}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_random_weights_do_not_depend_on_the_cut(make_config, make_state, family: str) -> None:
    config = make_config(family)
    whole = weights(make_state, config, [range(3)])
    assert whole.keys() == {name for name, _ in AutoModelForSequenceClassification.from_config(config).named_parameters()}
    same(whole, weights(make_state, config, CUTS))
    other = weights(make_state, config, [range(3)], seed=4)
    head = f"{HEADS_OF.get(family, 'classifier')}.weight"
    assert not torch.equal(other[head], whole[head])


def test_random_weights_follow_the_family_s_rule(make_config, make_state) -> None:
    config = make_config()
    made = weights(make_state, config, [range(3)])
    words = made["bert.embeddings.word_embeddings.weight"]
    assert float(words[1:].std()) == pytest.approx(config.initializer_range, rel=0.05)
    assert not words[0].any(), "the padding token's"
    assert not made["bert.encoder.layer.0.output.dense.bias"].any()
    assert (made["bert.encoder.layer.0.output.LayerNorm.weight"] == 1).all()
    layers = [made[f"bert.encoder.layer.{i}.output.dense.weight"] for i in range(3)]
    assert not torch.equal(layers[0], layers[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_constant_buffers_are_those_of_an_ordinary_build(make_config, make_state, family: str) -> None:
    config = make_config(family)
    stage, _ = make_state(config, range(3))
    theirs = dict(AutoModelForSequenceClassification.from_config(config).named_buffers())
    ours = dict(stage.model.named_buffers())
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_in_a_row_compute_what_the_model_does(make_config, make_state, family: str) -> None:
    config = make_config(family)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    from lmj_trainer.model.inputs import Inputs

    ids = torch.randint(5, 3000, (2, 12))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    ids[1, 7:] = 0
    hidden = None
    for cut in CUTS:
        stage, state = make_state(config, cut, model=None)
        for slot in state.slots:
            slot.weight.copy_(model.get_parameter(slot.name).detach())
        stage.set_training(False)
        with torch.no_grad():
            hidden = stage(Inputs(ids, mask, None, torch.zeros(2, dtype=torch.long)), hidden, None)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits
    assert torch.allclose(hidden, expected, atol=1e-6)


@pytest.fixture
def saved(make_config, tmp_path: Path) -> Path:
    torch.manual_seed(11)
    AutoModelForSequenceClassification.from_config(make_config()).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def change(folder: Path, edit) -> None:
    """Rewrite the folder's weights as ``edit`` makes them."""
    path = folder / "model.safetensors"
    # A clone: the file that is mapped is the one that is written.
    save_file({name: t.clone().contiguous() for name, t in edit(load_file(path)).items()}, path, metadata={"format": "pt"})


def source(folder: Path) -> Model:
    return Model(source=str(folder))


def test_a_saved_model_is_loaded_whole(make_config, make_state, saved: Path) -> None:
    expected = dict(AutoModelForSequenceClassification.from_pretrained(saved).named_parameters())
    same(weights(make_state, make_config(), CUTS, source(saved)), {n: p.detach() for n, p in expected.items()})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bare_encoder_is_loaded_and_its_head_starts_at_random(make_config, make_state, family: str, tmp_path: Path) -> None:
    from lmj_trainer.state.weights import initialise

    config = make_config(family)
    torch.manual_seed(12)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    expected = {n: p.detach() for n, p in AutoModel.from_pretrained(tmp_path).named_parameters()}
    stage, state = make_state(config, range(3), model=None)
    fresh = initialise(stage, state, source(tmp_path))
    ours = {slot.name: slot.weight for slot in state.slots}
    assert fresh
    assert all(name.startswith(("classifier.", "pre_classifier.", "score.")) for name in fresh)
    for name in ours.keys() - set(fresh):
        assert torch.equal(ours[name], expected[name.removeprefix(f"{stage.family.base}.")]), name
    scratch = weights(make_state, config, [range(3)])
    assert all(torch.equal(ours[name], scratch[name]) for name in fresh), "by the family's own rule, seeded by name"
    assert state.step == 0


def test_a_bare_encoder_without_a_pooler(make_config, make_state, tmp_path: Path) -> None:
    from lmj_trainer.state.weights import initialise

    AutoModel.from_config(make_config(), add_pooling_layer=False).save_pretrained(tmp_path)
    stage, state = make_state(make_config(), range(2, 3), model=None)
    assert initialise(stage, state, source(tmp_path)) == [
        "bert.pooler.dense.bias",
        "bert.pooler.dense.weight",
        "classifier.bias",
        "classifier.weight",
    ]


def test_layer_norms_of_2018_are_called_gamma_and_beta(make_config, make_state, saved: Path) -> None:
    expected = {n: p.detach().clone() for n, p in AutoModelForSequenceClassification.from_pretrained(saved).named_parameters()}
    ones = expected["bert.encoder.layer.1.output.LayerNorm.weight"]
    ones.uniform_()

    def rename(tensors):
        tensors["bert.encoder.layer.1.output.LayerNorm.weight"] = ones
        old = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        return {n.replace(*old[0]).replace(*old[1]): t for n, t in tensors.items()}

    change(saved, rename)
    assert any("gamma" in name for name in load_file(saved / "model.safetensors"))
    same(weights(make_state, make_config(), CUTS, source(saved)), expected)


def test_several_files_with_an_index(make_config, make_state, saved: Path) -> None:
    expected = {n: t.clone() for n, t in load_file(saved / "model.safetensors").items()}
    (saved / "model.safetensors").unlink()
    table = {}
    for i, names in enumerate((sorted(expected)[:10], sorted(expected)[10:])):
        save_file({n: expected[n] for n in names}, saved / f"model-{i}.safetensors")
        table |= dict.fromkeys(names, f"model-{i}.safetensors")
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    same(weights(make_state, make_config(), CUTS, source(saved)), expected)


def complaint(make_config, make_state, folder: Path, **changes) -> str:
    with pytest.raises(UserError) as caught:
        make_state(make_config(**changes), range(3), model=source(folder))
    text = str(caught.value)
    assert "\n" not in text
    assert str(folder) in text
    return text


def test_missing_weights(make_config, make_state, saved: Path) -> None:
    gone = "bert.encoder.layer.2.output.dense.weight"
    change(saved, lambda tensors: {n: t for n, t in tensors.items() if n != gone})
    assert f"has no weights for {gone}: is it a bert model?" in complaint(make_config, make_state, saved)


def test_weights_of_another_size(make_config, make_state, saved: Path) -> None:
    text = complaint(make_config, make_state, saved, intermediate_size=96)
    assert "is [64, 48], its config says [96, 48]" in text


def test_weights_for_other_labels(make_config, make_state, saved: Path) -> None:
    text = complaint(make_config, make_state, saved, num_labels=3)
    assert "was trained for other labels" in text
    assert "model.labels" in text


def test_no_safetensors(make_config, make_state, saved: Path) -> None:
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    assert "save_pretrained" in complaint(make_config, make_state, saved)


def test_unreadable_weights(make_config, make_state, saved: Path) -> None:
    (saved / "model.safetensors").write_bytes(b"half of a downl")
    assert "model.safetensors cannot be read" in complaint(make_config, make_state, saved)


def test_an_index_that_names_a_file_that_is_not_there(make_config, make_state, saved: Path) -> None:
    names = list(load_file(saved / "model.safetensors"))
    (saved / "model.safetensors").unlink()
    table = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    (saved / "model.safetensors.index.json").write_text(json.dumps(table))
    assert "model-00001-of-00002.safetensors" in complaint(make_config, make_state, saved)


def test_an_index_that_is_not_one(make_config, make_state, saved: Path) -> None:
    (saved / "model.safetensors.index.json").write_text('{"weight_m')
    assert "model.safetensors.index.json cannot be read" in complaint(make_config, make_state, saved)


def test_a_model_with_unknown_buffers_is_refused(make_config) -> None:
    stage = Stage(make_config(), HEADS, range(3), seed=1)
    stage.model.bert.embeddings.register_buffer("surprise", torch.zeros(2, device="meta"))
    from lmj_trainer.state.stage_state import StageState

    with pytest.raises(RuntimeError, match="surprise"):
        StageState(stage, torch.device("cpu"))
