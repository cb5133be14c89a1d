"""A checkpoint as a model's folder: by what the end of training does, with the same files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from lmj_api.layout import Layout
from lmj_trainer.dataset.pin import pinned
from lmj_trainer.dataset.prepared import at_hand, prepare
from lmj_trainer.dataset.stored import PreparedDataset, load
from lmj_trainer.errors import UserError
from lmj_trainer.model.config import load_config
from lmj_trainer.own.source import is_own
from lmj_trainer.pretrained import kept
from lmj_trainer.worker.device import make_deterministic
from lmj_trainer.worker.export import export
from lmj_trainer.worker.export_own import export_own
from lmj_trainer.worker.record_files import read_evaluations

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec, LiveMigrationJob
    from lmj_trainer.data.source import Say
    from lmj_trainer.store.port import Ref

_MARK = "export"


def build(job: LiveMigrationJob, checkpoint: Ref, step: int, built: Layout, say: Say) -> None:
    """Write the model of ``checkpoint``, of ``step``, into ``built``, and the adapter where there is one. Raises UserError and OSError."""
    # The model in 8 bits is the end's alone.
    spec = job.spec.model_copy(update={"output": job.spec.output.model_copy(update={"int8": False})})
    # The same sums, to the bit.
    make_deterministic(torch.device("cpu"), spec.training.computing_threads)
    name = job.metadata.name
    results = [each for each in read_evaluations(Layout.of(spec).evaluation, say) if each.step == step]
    if is_own(spec):
        export_own(built, checkpoint, name, spec, results, _MARK, _alone)
        return
    prepared = _prepared(spec, built.cache, say)
    config = load_config(kept(spec).model, prepared.labels, prepared.vocab_size)
    export(built, checkpoint, config, prepared, name, spec, results, _MARK, _alone)


def _alone() -> None:
    """Nobody else writes there."""


def _prepared(spec: JobSpec, fresh: Path, say: Say) -> PreparedDataset:
    """The dataset that the job trains with, of which labels and tokenizer are wanted; prepared again into ``fresh`` where it is lost."""
    cache = Layout.of(spec).cache
    try:
        found = at_hand(spec, cache)
    except UserError:  # the data may be on another machine
        found = None
    if found is None and len(there := [path.parent for path in cache.glob("[!.]*/meta.json")]) == 1:
        # The file was changed since, or the library is another: what the run has trained with is this.
        found = load(there[0])
    return cast("PreparedDataset", found or prepare(pinned(spec), fresh, say))
