"""Where a stage's first weights come from: a pretrained file, read in part, or the family's random rule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from lmj_trainer.errors import UserError
from lmj_trainer.model.built import BuiltStage
from lmj_trainer.model.lora import plain_name
from lmj_trainer.weight_files import lacking

if TYPE_CHECKING:
    from lmj_api.spec import Model
    from lmj_trainer.model.part import Part
    from lmj_trainer.model.stage import Stage
    from lmj_trainer.state.stage_state import StageState


def initialise(stage: Part, state: StageState, model: Model) -> list[str]:
    """Fill ``state`` with the weights of step 0. Returns the parameters that started at random although the model is pretrained,
    adapters aside.

    Raises UserError for a pretrained model that lacks weights or has others of the same name.
    """
    state.fill(-1)
    state.block.zero_()
    weights = {slot.name: slot.weight for slot in state.slots}
    fresh = set(stage.draw(weights)) if isinstance(stage, BuiltStage) else _fill(cast("Stage", stage), weights, model)
    state.fill(0)
    return sorted(plain_name(name) for name in fresh if ".lora_" not in name) if model.source is not None else []


def freeze(stage: Stage, model: Model, device: torch.device) -> list[str]:
    """Give ``stage`` the weights that it does not train: those of the model's source, or a function of the seed.

    They are no part of the state: each process makes them again, and ``stage.frozen`` says which they are. Returns and raises as
    :func:`initialise`.
    """
    # Not mapped from the file: what is computed with them depends, in the last bits, on where in a cache line they lie.
    values = {name: torch.zeros(parameter.shape) for name, parameter in stage.frozen_by_name()}
    fresh = _fill(stage, values, model)
    stage.frozen = {plain_name(name): xxhash.xxh3_64_hexdigest(value.numpy().data.cast("B")) for name, value in values.items()}
    for name, value in values.items():
        module, _, key = name.rpartition(".")
        setattr(stage.model.get_submodule(module), key, torch.nn.Parameter(value.to(device), requires_grad=False))
    stage.rename()
    return sorted(map(plain_name, fresh)) if model.source is not None else []


def _fill(stage: Stage, wanted: Mapping[str, torch.Tensor], model: Model) -> set[str]:
    """Write the first weights into ``wanted``, by the parameters' names. Returns those that the model's source does not have."""
    fresh = set(wanted)
    if model.source is not None:
        fresh = _load(stage, wanted, Path(model.source), model.source)
    # The random rule works on whole modules: keep what was loaded beside a fresh parameter (a module is loaded whole or not at all).
    # Values are drawn on the CPU, so that they are the same on every device.
    modules = dict(stage.modules_by_name())
    with torch.no_grad():
        for name in sorted({n.rpartition(".")[0] for n in fresh}):
            module = modules[name]
            own = dict(module.named_parameters(recurse=False))
            for key, parameter in own.items():
                setattr(module, key, torch.nn.Parameter(torch.empty(parameter.shape)))
            stage.initialise(name, module)
            for key, parameter in own.items():
                if f"{name}.{key}" in wanted:  # not the second name of another
                    wanted[f"{name}.{key}"].copy_(getattr(module, key))
                setattr(module, key, parameter)
    return fresh


def _load(stage: Stage, wanted: Mapping[str, torch.Tensor], folder: Path, source: str) -> set[str]:
    files = _files(folder, source)
    family = stage.family
    by_file: dict[Path, list[tuple[str, torch.Tensor]]] = {}
    missing = []
    for given, weight in wanted.items():
        name = plain_name(given)
        names = [*([stage.tied[name]] if name in stage.tied else []), name]
        found = next((key for each in names for key in _spellings(each, family.base) if key in files), None)
        if found is not None:
            by_file.setdefault(files[found], []).append((found, weight))
        elif name.startswith(stage.head.prefixes) or ".lora_" in name:
            missing.append(given)
        else:
            raise UserError(f"model.source {source!r} has no weights for {name}: is it a {stage.config.model_type} model?")
    for path, parts in by_file.items():
        with safe_open(path, framework="pt") as file:
            for key, weight in parts:
                value = file.get_tensor(key)
                if value.shape != weight.shape and key.startswith(stage.head.prefixes):
                    raise UserError(
                        f"model.source {source!r} was trained for other labels: {key} is {list(value.shape)},"
                        f" the job needs {list(weight.shape)}; list its labels in model.labels or start from the bare encoder"
                    )
                if value.shape != weight.shape:
                    raise UserError(
                        f"model.source {source!r}: {key} is {list(value.shape)}, its config says {list(weight.shape)}"
                    )
                with torch.no_grad():
                    weight.copy_(value)
    return set(missing)


def _spellings(name: str, base: str) -> list[str]:
    # Files of the bare encoder lack the prefix; files of 2018 call a layer norm's weight gamma and its bias beta.
    names = [name]
    if name.startswith(f"{base}."):
        names.append(name.removeprefix(f"{base}."))
    return names + [n.replace(".weight", ".gamma").replace(".bias", ".beta") for n in names if ".LayerNorm." in n]


def _files(folder: Path, source: str) -> Mapping[str, Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            table: dict[str, str] = json.loads(index.read_text())["weight_map"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"model.source {source!r}: {index.name} cannot be read: {error}") from error
        files = {key: folder / Path(name).name for key, name in table.items()}
        for path in sorted(set(files.values())):
            if not path.is_file():
                raise UserError(f"model.source {source!r} has no {path.name}, which its {index.name} names: download it again")
        return files
    single = folder / "model.safetensors"
    if (problem := lacking(path.name for path in folder.iterdir())) is not None:
        raise UserError(f"model.source {source!r} {problem}")
    try:
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except SafetensorError as error:
        raise UserError(f"model.source {source!r}: model.safetensors cannot be read: {error}") from error
