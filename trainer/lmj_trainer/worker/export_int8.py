"""The final model once more, with its linear layers in 8 bits, for inference on CPUs."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from safetensors import safe_open
from safetensors.torch import save_file

from lmj_trainer.int8 import SCALE, linear_layers, quantized, settings

if TYPE_CHECKING:
    from pathlib import Path

_WEIGHTS, _CONFIG, _CARD = "model.safetensors", "config.json", "README.md"

_ABOUT = """
## In 8 bits

The linear layers of the model are kept as whole numbers from -127 to 127 with a scale for each row, and multiply
activations with a scale for each token; the rest is as it was. Scores are near those of the whole model, not equal, and
the evaluations above are of that one. `lmj predict` and `lmj evaluate` compute with whole numbers on a CPU. Other programs
read the folder with [compressed-tensors](https://pypi.org/project/compressed-tensors/) installed.
"""


def write_int8(model: Any, source: Path, folder: Path) -> None:
    """Write into ``folder`` what is in ``source``, a saved model of the class of ``model`` (which needs no memory), in 8 bits.

    Needs memory for a quarter of what is written in 8 bits, and one weight: the rest is mapped from the file.
    """
    kept, left = linear_layers(model)
    with safe_open(source / _WEIGHTS, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    for name in kept:
        tensors[f"{name}.weight"], tensors[f"{name}{SCALE}"] = quantized(tensors[f"{name}.weight"])
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    for path in source.iterdir():
        if path.name not in (_WEIGHTS, _CONFIG, _CARD):
            shutil.copyfile(path, folder / path.name)
    config = json.loads((source / _CONFIG).read_text(encoding="utf-8"))
    config["quantization_config"] = settings(left)
    (folder / _CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / _CARD).write_text((source / _CARD).read_text(encoding="utf-8") + _ABOUT, encoding="utf-8")
