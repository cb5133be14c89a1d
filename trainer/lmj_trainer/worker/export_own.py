"""The final model of a user's own class: its weights, and the file that makes the model that they are of."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from lmj_trainer.checkpoint.tensors import open_tensors, read_manifest
from lmj_trainer.own.source import load_own
from lmj_trainer.own.units import build, names_of
from lmj_trainer.trained import write_own
from lmj_trainer.worker.export import as_os_error, begin, finish, scores_table

if TYPE_CHECKING:
    from torch import nn

    from lmj_api.layout import Layout
    from lmj_api.protocol import Evaluation
    from lmj_api.spec import JobSpec
    from lmj_trainer.own.source import Own
    from lmj_trainer.store.port import Ref


def export_own(
    layout: Layout,
    checkpoint: Ref,
    job: str,
    spec: JobSpec,
    results: list[Evaluation],
    mark: str,
    allowed: Callable[[], None],
) -> None:
    """Write the model's folder, as :func:`~lmj_trainer.worker.export.export` does."""
    own, manifest = load_own(spec.model), read_manifest(checkpoint)
    units = build(own, spec.training.seed)
    whole = names_of(units)
    trained = [name for name, parameter in whole.named_parameters() if parameter.requires_grad]
    with torch.no_grad():
        for name, value in open_tensors(checkpoint, manifest, trained).items():
            whole.get_parameter(name).copy_(value)
    partial = begin(layout.model, mark, allowed)
    if own.has("save"):
        with as_os_error():  # a disk that is full is nobody's mistake: it is tried again
            own.task.save(units[0] if len(units) == 1 else units, partial)
    else:
        # One module has its own names. Tensors of which a file has two must not share memory.
        state = (whole if len(units) > 1 else units[0]).state_dict()
        tensors = {name: value.detach().clone().contiguous() for name, value in state.items() if isinstance(value, torch.Tensor)}
        with as_os_error():
            save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(own.path, partial / Path(own.path).name)
    (partial / "README.md").write_text(_card(job, spec, manifest.step, results, _usage(own, units)), encoding="utf-8")
    if not spec.model.is_script:  # what a script saves is loaded as any model of transformers
        write_own(partial, own.path, own.name)
    finish(partial, layout.model, allowed)


def _usage(own: Own, units: Sequence[nn.Module]) -> str:
    """Lines that load what was saved."""
    if own.has("save"):
        kind = type(units[0])
        module = "transformers" if kind.__module__.startswith("transformers.") else Path(own.path).stem
        return f'from {module} import {kind.__name__}\n\nmodel = {kind.__name__}.from_pretrained("path/to/this/folder")'
    made = f"{own.name}().model()"
    return f"""import torch
from safetensors.torch import load_file
from {Path(own.path).stem} import {own.name}

model = {f"torch.nn.ModuleList({made})" if len(units) > 1 else made}
model.load_state_dict(load_file("model.safetensors"))"""


def _card(job: str, spec: JobSpec, step: int, results: list[Evaluation], usage: str) -> str:
    assert spec.model.python_file is not None
    file, name = spec.model.python_file
    training = spec.training
    decay = f"weight decay {training.weight_decay:g}"
    what = "script" if spec.model.is_script else f"class `{name}`"
    return f"""---
tags: [livemigrationjob]
---

# {job}

The model of the {what} in [{Path(file).name}]({Path(file).name}), trained by LiveMigrationJob in
{spec.pipeline.stages} pipeline stages.

- Data: {Path(spec.dataset.source).name}
- Steps: {step}; batch {training.batch_size} x {training.gradient_accumulation_steps}
- {training.optimizer}, peak learning rate {training.learning_rate:g} ({training.schedule}), {decay}, seed {training.seed}

{scores_table(results)}

```python
{usage}
```
"""
