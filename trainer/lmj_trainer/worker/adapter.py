"""What a job with low-rank adapters made: the adapter alone, and the model with the adapter in its weights."""

from __future__ import annotations

import warnings
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from lmj_trainer.checkpoint.tensors import open_tensors, require_frozen
from lmj_trainer.fetched import local
from lmj_trainer.model.lora import ADAPTER
from lmj_trainer.model.stage import Stage
from lmj_trainer.pretrained import kept
from lmj_trainer.state.weights import freeze
from lmj_trainer.task.registry import TASKS

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from lmj_api.manifest import Manifest
    from lmj_api.spec import JobSpec
    from lmj_trainer.store.port import Ref


def restore_adapted(checkpoint: Ref, manifest: Manifest, config: PretrainedConfig, spec: JobSpec) -> Stage:
    """The whole model on the CPU: what was trained from the checkpoint, the rest from where it came from."""
    spec = local(spec)
    layers = range(int(config.num_hidden_layers))
    stage = Stage(
        config, TASKS[spec.model.task].heads, layers, seed=spec.training.seed, lora=spec.model.lora, source=spec.model.source
    )
    freeze(stage, kept(spec).model, torch.device("cpu"))
    require_frozen(checkpoint, manifest, stage.frozen)
    for name, value in open_tensors(checkpoint, manifest, [name for name, _ in stage.parameters_by_name()]).items():
        module, _, key = name.rpartition(".")
        setattr(stage.model.get_submodule(module), key, torch.nn.Parameter(value.clone()))
    stage.materialise(torch.device("cpu"))
    return stage


def save_adapter(stage: Stage, folder: Path, revision: str | None) -> None:
    """Write the adapter and the head into ``folder``, as peft's ``save_pretrained`` does: ``PeftModel.from_pretrained`` reads it.

    ``revision``: of the model that it belongs to.
    """
    from peft import get_peft_model_state_dict

    # Without looking for what else might have been changed: that would ask the hub.
    tensors = get_peft_model_state_dict(stage.peft, adapter_name=ADAPTER, save_embedding_layers=False)
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy(stage.peft.peft_config[ADAPTER])
    config.inference_mode, config.revision = True, revision
    # peft keeps names of modules as sets, which are in another order in each process.
    for name, value in vars(config).items():
        if isinstance(value, set):
            setattr(config, name, sorted(value))
    config.save_pretrained(folder)


def merged(stage: Stage) -> dict[str, torch.Tensor]:
    """All weights, named as without adapters, with the adapter added to those that have one. The stage is spent afterwards."""
    config, tied = stage.config, stage.config.tie_word_embeddings
    with warnings.catch_warnings():
        # A table of tokens at both ends is two here, of equal values; peft would have them be two from now on.
        warnings.filterwarnings("ignore", "Input and output embeddings are no longer tied", UserWarning)
        model = stage.peft.merge_and_unload()
    config.tie_word_embeddings = tied
    return {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
