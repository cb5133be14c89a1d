"""Low-rank adapters: which modules get one, and names with and without them. Imports peft only when called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lmj_api.nearest import did_you_mean
from lmj_trainer.errors import UserError
from lmj_trainer.model.families.registry import FAMILIES

if TYPE_CHECKING:
    from lmj_api.spec import Lora

ADAPTER = "default"
"""The adapter's name in peft, which could have several."""

_WRAPPER = re.compile(rf"\.(base_layer|original_module|modules_to_save\.{ADAPTER})(?=\.|$)")


def targets(family: str, lora: Lora) -> list[str]:
    """The ends of names of the modules that get an adapter, sorted. UserError: one of them is in no layer of ``family``."""
    linear = FAMILIES[family].linear
    if lora.target_modules is None:
        return sorted(name.rpartition(".")[2] for name in FAMILIES[family].adapted)
    ends = sorted({".".join(parts[i:]) for name in linear if (parts := name.split(".")) for i in range(len(parts))})
    for name in lora.target_modules:
        if name not in ends:
            near = did_you_mean(name, ends)
            raise UserError(
                f"model.lora.targetModules {name!r} is no linear module of a {family} layer{near}: "
                f"it has {', '.join(linear)}; give these names or their ends"
            )
    return sorted(set(lora.target_modules))


def adapted(model: Any, lora: Lora, task_type: str, source: str | None) -> Any:
    """Put adapters without values into ``model``, a model on the meta device, as ``get_peft_model`` does; peft's model around it.

    ``task_type``: peft's, which decides what else is trained. Of a classifier: modules whose names end in ``classifier``, so BERT's
    pooler is frozen, and DistilBERT's ``pre_classifier`` is trained. The rest has ``requires_grad`` off.
    """
    import warnings

    from peft import LoraConfig, TaskType, get_peft_model
    from transformers.pytorch_utils import Conv1D

    config = LoraConfig(
        task_type=TaskType(task_type),
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets(model.config.model_type, lora),
        # GPT-2's linear modules have their weights the other way round.
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    with warnings.catch_warnings():
        # peft asks transformers for what will be called otherwise in its next version.
        warnings.simplefilter("ignore", FutureWarning)
        whole = get_peft_model(model, config, ADAPTER, low_cpu_mem_usage=True)
    # Not before: peft takes it from the model, which was made from its configuration alone.
    config.base_model_name_or_path = source
    return whole


def is_dead(name: str) -> bool:
    """Whether ``name`` is of what peft keeps of the module that is trained in its place: nothing is computed with it."""
    return ".original_module." in f"{name}."


def plain_name(name: str) -> str:
    """The name that a parameter or module has in the model without adapters; an adapter's own stays as it is."""
    return _WRAPPER.sub("", name)
