"""A checkpoint as a model's folder: by what the end of training does, with the same files."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from lmj_api.layout import Layout
from lmj_trainer.dataset.pin import pinned
from lmj_trainer.dataset.prepared import at_hand, prepare
from lmj_trainer.dataset.stored import PreparedDataset, load
from lmj_trainer.errors import UserError
from lmj_trainer.fetched import local
from lmj_trainer.model.config import load_config
from lmj_trainer.own.source import is_own, load_own
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


@dataclass(frozen=True)
class Ready:
    """All but the weights of a job's model. It is looked up first: what is read of a checkpoint is to be read at once, before it may go."""

    job: LiveMigrationJob
    built: Layout
    """Where the model is written, and the adapter where there is one."""
    prepared: PreparedDataset | None
    """None: of a class of the user's, which needs nothing of it."""
    say: Say

    def write(self, checkpoint: Ref, step: int) -> None:
        """Write the model of ``checkpoint``, of ``step``. Raises UserError and OSError."""
        spec, name = self.job.spec, self.job.metadata.name
        results = [each for each in read_evaluations(Layout.of(spec).evaluation, self.say) if each.step == step]
        if self.prepared is None:
            export_own(self.built, checkpoint, name, spec, results, _MARK, _alone)
        else:
            config = _config(spec, self.prepared)
            export(self.built, checkpoint, config, self.prepared, name, spec, results, _MARK, _alone)


def prepare_export(job: LiveMigrationJob, built: Layout, say: Say) -> Ready:
    """Look up what the model of ``job`` needs. Raises UserError and OSError."""
    # The model in 8 bits is the end's alone.
    spec = job.spec.model_copy(update={"output": job.spec.output.model_copy(update={"int8": False})})
    # The same sums, to the bit.
    make_deterministic(torch.device("cpu"), spec.training.computing_threads)
    prepared = None
    if is_own(spec):
        load_own(spec.model)
    else:
        prepared = _prepared(local(spec), built.cache, say)
        _load_classes(_config(spec, prepared))
    return Ready(job.model_copy(update={"spec": spec}), built, prepared, say)


def _config(spec: JobSpec, prepared: PreparedDataset) -> Any:
    """That of transformers, a new one: who exports changes it."""
    return load_config(kept(local(spec)).model, prepared.labels, prepared.vocab_size)


def _load_classes(config: Any) -> None:
    """Transformers loads them when they are asked for, which takes a second."""
    with contextlib.suppress(ImportError):
        importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))


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
