"""The final model: an ordinary ``save_pretrained`` folder, put together from a checkpoint, and the adapter where one was trained."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from lmj_api.protocol import Evaluation
from lmj_trainer.checkpoint.tensors import open_tensors, read_manifest
from lmj_trainer.durable import sync_file, sync_folder
from lmj_trainer.trained import write_trained
from lmj_trainer.worker.adapter import merged, restore_adapted, save_adapter
from lmj_trainer.worker.export_int8 import write_int8

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from lmj_api.layout import Layout
    from lmj_api.spec import JobSpec
    from lmj_trainer.dataset.stored import PreparedDataset
    from lmj_trainer.store.port import Ref
    from lmj_trainer.task.port import Task

_WITHOUT_PIPELINE = ("question-answering",)
"""Kinds of models that transformers has no pipeline for."""
_PARTIAL, _OLD = _ENDS = (".partial", ".old")


def export(
    layout: Layout,
    checkpoint: Ref,
    config: PretrainedConfig,
    prepared: PreparedDataset,
    job: str,
    spec: JobSpec,
    results: list[Evaluation],
    mark: str,
    allowed: Callable[[], None],
) -> None:
    """Write the model's folder, and before it those of the adapter and of the model in 8 bits. Older ones are replaced.

    Each is written atomically: a reader finds it whole or not at all.
    ``mark``: for names of what only this one writes. ``allowed`` raises when another has taken its place, or when
    that cannot be told: then nothing is replaced.
    """
    import transformers

    from lmj_trainer.task.registry import TASKS

    manifest, task = read_manifest(checkpoint), TASKS[spec.model.task]
    with torch.device("meta"):
        model = getattr(transformers, task.heads.auto).from_config(config, dtype=torch.float32)
    config.architectures, config.problem_type = [type(model).__name__], task.heads.problem_type
    if spec.model.lora is None:
        tensors = open_tensors(checkpoint, manifest, [name for name, _ in model.named_parameters()])
    else:
        trained = restore_adapted(checkpoint, manifest, config, spec)
        partial = begin(layout.adapter, mark, allowed)
        with as_os_error():
            save_adapter(trained, partial, spec.model.revision)
        finish(partial, layout.adapter, allowed)
        tensors = {name: tensor for name, tensor in merged(trained).items() if name not in trained.tied}
    partial = begin(layout.model, mark, allowed)
    with as_os_error():
        save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    if config.pad_token_id is None:
        # With more than one row a decoder's classifier has to know where a row's tokens end.
        config.pad_token_id = prepared.pad_id
    config.save_pretrained(partial)
    for file in prepared.tokenizer.iterdir():
        shutil.copyfile(file, partial / file.name)
    (partial / "README.md").write_text(_card(job, spec, config, manifest.step, results, task))
    write_trained(partial, spec.dataset, spec.training.seed if task.masked else None)
    if spec.output.int8:
        small = begin(layout.int8, mark, allowed)
        with as_os_error():
            write_int8(model, partial, small)
        finish(small, layout.int8, allowed)
    elif layout.int8.exists():
        allowed()
        shutil.rmtree(layout.int8)  # of a model that is about to be replaced
    finish(partial, layout.model, allowed)


@contextlib.contextmanager
def as_os_error() -> Iterator[None]:
    """Safetensors has an error of its own for a file that cannot be written."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def begin(target: Path, mark: str, allowed: Callable[[], None]) -> Path:
    """An empty folder beside ``target``, to become it. What others left of theirs goes: they are over, whether they know it or not."""
    allowed()
    target.parent.mkdir(parents=True, exist_ok=True)
    for name in os.listdir(target.parent):
        if name.startswith(f".{target.name}.") and name.endswith(_ENDS):
            shutil.rmtree(target.parent / name, ignore_errors=True)
    partial = target.with_name(f".{target.name}.{mark}{_PARTIAL}")
    partial.mkdir()
    return partial


def finish(partial: Path, target: Path, allowed: Callable[[], None]) -> None:
    """Have ``partial`` take the place of ``target``."""
    for file in partial.iterdir():
        sync_file(file)
    sync_folder(partial)
    old = partial.with_suffix(_OLD)
    allowed()
    # Another may come from here on. It clears ``partial`` away first, and what is at ``target`` may be its model.
    partial.stat()
    there = target.exists()
    if there:
        os.rename(target, old)
    try:
        os.rename(partial, target)
    except OSError:
        if there:
            with contextlib.suppress(OSError):  # a newer one is there: no rename replaces a folder that is not empty
                os.rename(old, target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def scores_table(results: list[Evaluation]) -> str:
    """What evaluations say, in Markdown."""
    names = list(results[0].scores) if results else ["accuracy"]
    lines = [["split", "step", "samples", "loss", *names], ["---"] * (4 + len(names))]
    # One of them may lack a score that is no number there.
    found = [[f"{r.scores[n]:.4f}" if n in r.scores else "-" for n in names] for r in results]
    lines += [[r.split, str(r.step), str(r.samples), r.loss_text, *cells] for r, cells in zip(results, found, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _card(job: str, spec: JobSpec, config: PretrainedConfig, step: int, results: list[Evaluation], task: Task) -> str:
    training = spec.training
    decay = f"weight decay {training.weight_decay:g}"
    lora = spec.model.lora
    adapter = (
        f"\n- Low-rank adapters of rank {lora.r}, alpha {lora.alpha}, are merged into the weights" if lora is not None else ""
    )
    origin = spec.model.source or f"random weights ({config.model_type})"
    labels = f" with the labels {', '.join(str(v) for v in config.id2label.values())}" if spec.model.task.named else ""
    kind = task.heads.auto
    usage = (
        f'from transformers import pipeline\nmodel = pipeline("{task.pipeline}", model="path/to/this/folder")'
        if task.pipeline not in _WITHOUT_PIPELINE
        else f'from transformers import {kind}\nmodel = {kind}.from_pretrained("path/to/this/folder")'
    )
    columns = ", ".join(spec.dataset.columns) + (f" → {spec.dataset.label}" if spec.dataset.label else "")
    return f"""---
library_name: transformers
pipeline_tag: {task.pipeline}
tags: [{task.pipeline}, livemigrationjob]
---

# {job}

A {task.noun}{labels}, trained by LiveMigrationJob in
{spec.pipeline.stages} pipeline stages.

- From: {origin}{adapter}
- Data: {Path(spec.dataset.source).name}, columns {columns}
- Steps: {step}; batch {training.batch_size} x {training.gradient_accumulation_steps}; at most {spec.dataset.max_length} tokens
- {training.optimizer}, peak learning rate {training.learning_rate:g} ({training.schedule}), {decay}, seed {training.seed}

{scores_table(results)}

```python
{usage}
```
"""
