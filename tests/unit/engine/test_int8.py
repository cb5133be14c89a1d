"""A model whose linear layers are kept in 8 bits: what it answers, what its file weighs, and who can read it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.parity_jobs import make_model
from torch import Tensor, nn

from lmj_api.layout import Layout
from lmj_api.spec import LiveMigrationJob, Model
from lmj_trainer.check import check_model
from lmj_trainer.errors import UserError
from lmj_trainer.int8 import Int8Linear, is_int8, linear_layers, quantized
from lmj_trainer.model.config import load_config, read_config
from lmj_trainer.task.saved_model import SavedModel
from lmj_trainer.worker.export_int8 import write_int8

from .small_job import Line, elsewhere, losses, make, small_job, start, view

pytestmark = pytest.mark.integration

CLASSIFIER, WRITER, GAPS = "AutoModelForSequenceClassification", "AutoModelForCausalLM", "AutoModelForMaskedLM"
KINDS = [
    ("bert", CLASSIFIER, {}),
    ("distilbert", CLASSIFIER, {}),
    ("roberta", "AutoModelForTokenClassification", {}),
    ("electra", "AutoModelForQuestionAnswering", {}),
    ("bert", GAPS, {}),
    ("llama", WRITER, {}),
    ("qwen2", WRITER, {"tie_word_embeddings": True}),
    ("mistral", CLASSIFIER, {}),
    ("deberta-v2", CLASSIFIER, {}),
]
"""Families, classes of transformers, and what else their models are made with."""


def saved(tmp_path: Path, family: str = "bert", auto: str = CLASSIFIER, **more: Any) -> tuple[Path, Path]:
    """A model with random weights that are large enough to matter, and the same in 8 bits."""
    kind = getattr(transformers, auto)
    folder = make_model(tmp_path / "model", family, kind=kind, initializer_range=0.2, **more)
    (folder / "README.md").write_text("# A model\n")
    with torch.device("meta"):
        model = kind.from_config(read_config(str(folder), None))
    (tmp_path / "model-int8").mkdir()
    write_int8(model, folder, tmp_path / "model-int8")
    return folder, tmp_path / "model-int8"


def outputs(model: Any, ids: Tensor) -> Tensor:
    with torch.inference_mode():
        found = model(input_ids=ids)
    return found.logits if "logits" in found else torch.stack([found.start_logits, found.end_logits], -1)


def test_a_row_has_a_scale_and_no_number_is_further_off_than_half_of_it() -> None:
    torch.manual_seed(0)
    values = torch.randn(64, 50) * torch.logspace(-6, 3, 64)[:, None]
    values[7] = 0
    values[8] = torch.finfo(torch.float32).tiny
    ints, scales = quantized(values)
    assert (ints.dtype, scales.dtype, scales.shape) == (torch.int8, torch.float32, (64, 1))
    assert [int(n) for n in ints.abs().amax(1)] == [127] * 7 + [0, 1] + [127] * 55
    assert ((ints * scales - values).abs() <= scales * 0.50001).all()


def test_the_error_of_a_layer_is_what_rounding_makes_it() -> None:
    """Each product is off by at most |x| sw/2 + |w| sx/2 + sx sw/4, where sx and sw are the scales of its two rows."""
    torch.manual_seed(0)
    layer, hidden = nn.Linear(96, 40), torch.randn(3, 7, 96)
    weight, scale = quantized(layer.weight.detach())
    found = Int8Linear(weight, scale, layer.bias)(hidden)
    _, tokens = quantized(hidden.reshape(-1, 96))
    tokens = tokens.reshape(3, 7, 1)
    bound = hidden.abs().sum(-1, keepdim=True) * scale.T / 2 + layer.weight.abs().sum(1) * tokens / 2 + 96 * tokens * scale.T / 4
    error = (found - layer(hidden)).abs()
    assert (error <= bound + 1e-4).all()
    assert 0 < error.max() < 0.05


def test_what_a_token_gives_does_not_depend_on_what_is_beside_it() -> None:
    torch.manual_seed(0)
    weight, scale = quantized(torch.randn(33, 70))
    layer, hidden = Int8Linear(weight, scale, torch.randn(33)), torch.randn(40, 5, 70)
    hidden[3] *= 1000
    whole = layer(hidden)
    for row in range(40):
        assert torch.equal(layer(hidden[row]), whole[row])


@pytest.mark.parametrize(("family", "auto", "more"), KINDS, ids=[f"{family}-{auto}" for family, auto, _ in KINDS])
def test_its_scores_are_near_those_of_the_whole_model(tmp_path: Path, family: str, auto: str, more: dict[str, Any]) -> None:
    """Near: a weight and an activation are rounded to 1/254 of the largest beside them, and 18 to 21 layers do so one after another."""
    folder, small = saved(tmp_path, family, auto, **more)
    float_model, int8_model = SavedModel.load(folder).model, SavedModel.load(small).model
    kept = [name for name, module in int8_model.named_modules() if isinstance(module, Int8Linear)]
    assert 18 <= len(kept) <= 22
    assert all(name.startswith(f"{float_model.base_model_prefix}.") for name in kept), "what stands on it stays"
    torch.manual_seed(0)
    ids = torch.randint(5, 20, (16, 24))
    expected, found = outputs(float_model, ids), outputs(int8_model, ids)
    assert not torch.equal(found, expected)
    assert (found - expected).abs().max() <= 0.1 * (expected.max() - expected.min())
    # What is not kept in 8 bits is as it was, and shared as it was.
    for name, parameter in int8_model.named_parameters(remove_duplicate=False):
        assert torch.equal(parameter, float_model.get_parameter(name)), name


def test_what_stands_on_the_model_and_what_is_shared_stays(tmp_path: Path) -> None:
    folder, small = saved(tmp_path, "qwen2", WRITER, tie_word_embeddings=True)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(read_config(str(folder), None))
    kept, left = linear_layers(model)
    assert left == ["lm_head"]
    assert {name.rpartition(".")[2] for name in kept} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    assert json.loads((small / "config.json").read_text())["quantization_config"]["ignore"] == left
    assert "lm_head.weight" not in load_file(small / "model.safetensors")
    model.model.layers[0].self_attn.q_proj.weight = model.model.layers[1].self_attn.q_proj.weight
    again, _ = linear_layers(model)
    assert set(kept) - set(again) == {f"model.layers.{n}.self_attn.q_proj" for n in (0, 1)}


@pytest.mark.parametrize(("family", "auto"), [("bert", CLASSIFIER), ("llama", WRITER)])
def test_transformers_reads_it_where_compressed_tensors_is_there(tmp_path: Path, family: str, auto: str) -> None:
    """It computes with the same whole numbers for weights, and with floats, so its scores are near too."""
    pytest.importorskip("compressed_tensors")
    folder, small = saved(tmp_path, family, auto)
    theirs = getattr(transformers, auto).from_pretrained(str(small)).eval()
    torch.manual_seed(0)
    ids = torch.randint(5, 20, (16, 24))
    expected = outputs(SavedModel.load(folder).model, ids)
    assert (outputs(theirs, ids) - expected).abs().max() <= 0.1 * (expected.max() - expected.min())


def test_the_file_is_a_third_of_the_whole_one(tmp_path: Path) -> None:
    """Where most weights are those of linear layers: a quarter of these, their scales, and the rest as it was."""
    folder, small = saved(tmp_path, hidden_size=128, intermediate_size=512, num_attention_heads=2)
    sizes = [(path / "model.safetensors").stat().st_size for path in (small, folder)]
    assert sizes[0] / sizes[1] <= 0.35
    assert {path.name for path in small.iterdir()} == {path.name for path in folder.iterdir()}
    assert (small / "README.md").read_text().startswith("# A model\n\n## In 8 bits\n")


def spoil(folder: Path, how: str) -> None:
    file, name = folder / "model.safetensors", "bert.encoder.layer.0.output.dense"
    tensors = load_file(file)
    if how == "no scale":
        del tensors[f"{name}.weight_scale"]
    elif how == "a scale too many":
        tensors[f"{name}.weight_scale"] = torch.ones(3, 1)
    elif how == "another name":
        tensors["other.weight"], tensors["other.weight_scale"] = torch.zeros(2, 2, dtype=torch.int8), torch.ones(2, 1)
    elif how == "a weight less":
        del tensors["bert.embeddings.word_embeddings.weight"]
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        save_file(tensors, file)


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("no scale", "bert.encoder.layer.0.output.dense.weight has no scales"),
        ("a scale too many", "bert.encoder.layer.0.output.dense is no layer of 8 bits with a scale for each row"),
        ("another name", "model.safetensors and config.json do not belong together (other.weight)"),
        ("a weight less", "do not belong together (bert.embeddings.word_embeddings.weight)"),
        ("cut", "model.safetensors: "),
    ],
)
def test_a_damaged_one_is_refused(tmp_path: Path, how: str, line: str) -> None:
    _, small = saved(tmp_path)
    spoil(small, how)
    with pytest.raises(UserError) as caught:
        SavedModel.load(small)
    assert str(caught.value).startswith(f"model {small} cannot be loaded: ")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_quantizations_are_not_taken_for_it(tmp_path: Path) -> None:
    folder, small = saved(tmp_path)
    assert is_int8(read_config(str(small), None))
    assert not is_int8(read_config(str(folder), None))
    config = json.loads((small / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = 4
    other = tmp_path / "other"
    shutil.copytree(small, other)
    (other / "config.json").write_text(json.dumps(config))
    assert not is_int8(read_config(str(other), None))


def test_it_is_not_trained(tmp_path: Path) -> None:
    _, small = saved(tmp_path)
    with pytest.raises(UserError, match="has quantized weights, which cannot be trained: name the model that it was made from"):
        load_config(Model(source=str(small)), ["n", "p"], 23)


def asking(job: LiveMigrationJob, **changes: Any) -> LiveMigrationJob:
    output = job.spec.output.model_copy(update={"int8": True})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"output": output, **changes})})


def test_a_model_without_linear_layers_is_refused_before_training(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    gpt2 = Model.model_validate(
        {"scratch": {"architecture": "gpt2", "layers": 2, "hiddenSize": 16, "heads": 2, "maxPositions": 16}}
    )
    assert check_model(asking(job).spec) == 2
    assert check_model(job.spec.model_copy(update={"model": gpt2})) == 2
    with pytest.raises(UserError, match=r"output\.int8: a model of type gpt2 has no linear layers"):
        check_model(asking(job, model=gpt2).spec)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_job_makes_it_beside_the_model_which_is_as_without(tmp_path: Path) -> None:
    plain = small_job(tmp_path)
    asked = asking(elsewhere(plain, tmp_path / "asked"))
    for job in (plain, asked):
        make(job, Line()).run(view(1, start()))
    assert losses(asked) == losses(plain)
    without, beside = Layout.of(plain.spec), Layout.of(asked.spec)
    assert files(beside.model) == files(without.model)
    assert {path.name for path in beside.output.iterdir()} - {path.name for path in without.output.iterdir()} == {"model-int8"}
    assert files(beside.int8).keys() == files(beside.model).keys()
    assert SavedModel.load(beside.int8).usual_length == SavedModel.load(beside.model).usual_length == 16


def test_one_of_an_earlier_model_goes(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    old = Layout.of(job.spec).int8
    old.mkdir(parents=True)
    (old / "config.json").write_text("{}")
    make(job, Line()).run(view(1, start()))
    assert not old.exists()
