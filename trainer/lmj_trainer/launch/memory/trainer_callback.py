"""Snapshots of a script whose loop is the Trainer's of transformers, without a change to it.

Private names of ``Trainer`` are used here and nowhere else. Where one is missing, or the state is sharded among ranks, no
snapshot is taken, which is said once.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from lmj_trainer.launch.memory import folder as memory
from lmj_trainer.launch.memory.imports import when_imported
from lmj_trainer.launch.memory.place import Place

log = logging.getLogger("lmj.memory")

_OWN = r"rng_state.*|lmj_loss_\d+\.json"
"""Files that are one rank's."""
_NEEDED = ("_maybe_log_save_evaluate", "_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state", "store_flos")
_STATE = "trainer_state.json"
_TAKING = "lmj_trainer.launch.memory.taking"
"""Imports torch, as scripts with a Trainer do, and no other."""
_WHERE = "should_save_on_this_rank"


def install(place: Place) -> None:
    """Have each Trainer that this process makes take snapshots, and go on from ``place.restore``. Imports nothing."""
    when_imported("transformers.trainer", functools.partial(_patch, Memory(place)))


class Memory:
    """The snapshots of the first ``train()`` of this process. Later ones are not remembered: their steps begin at 0 again."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._taker: Any = None
        self._trainer: Any = None
        """The one that trains now; None: none does, or it takes no snapshots."""
        self._begun = False
        self._due = False
        self._elapsed, self._since = 0.0, 0.0
        self._loss: dict[str, float] | None = None
        """What the restored snapshot says of sums that the Trainer begins anew; None: it has none of this rank."""
        self._restoring = False
        """A snapshot was restored, and the Trainer has not begun its steps yet."""

    def begin(self, trainer: Any, script_resumes: Any) -> Any:
        """``trainer.train()`` begins; what it is to resume from, where the script says ``script_resumes``."""
        if self._begun:
            return script_resumes
        self._begun = True
        self._since = time.monotonic()
        if (reason := _unfit(trainer)) is not None:
            log.warning("command.memory does nothing here: %s; the script goes on with its own checkpoints", reason)
            return script_resumes
        self._trainer = trainer
        self._taker = importlib.import_module(_TAKING).Taker(self._place)
        restored = self._restored(trainer, script_resumes)
        if self._place.part == 0:
            memory.forget(self._place.folder, self._place.view, restored)
        if restored is None:
            return script_resumes
        self._restoring = True
        losses = restored / _loss_file(self._place.rank)
        if losses.is_file():
            self._loss = json.loads(losses.read_text())
        return str(restored)

    def _restored(self, trainer: Any, script_resumes: Any) -> Path | None:
        path = self._place.restore
        snapshot = memory.read(path) if path is not None else None
        if path is None or snapshot is None:
            if path is not None:
                log.warning("there is no complete snapshot in %s: the script goes on from its own checkpoints", path)
            return None
        own = _script_step(trainer, script_resumes)
        return None if own is not None and own > snapshot.step else path

    def end(self) -> None:
        """``train()`` is over."""
        self._trainer = None

    def started(self, trainer: Any) -> None:
        """The Trainer has set up all that it resumes; its sums go on where they were."""
        saved, self._loss = self._loss, None
        restoring, self._restoring = self._restoring, False
        if trainer is not self._trainer or not restoring:
            return
        if saved is not None and hasattr(trainer, "_tr_loss"):
            self._elapsed = saved["elapsed"]
            trainer._tr_loss.fill_(saved["loss"])
            trainer._total_loss_scalar = saved["total"]
            trainer._globalstep_last_logged = int(saved["logged"])
            trainer._initial_global_step = int(saved["initial"])
        if not getattr(trainer.args, "restore_callback_states_from_checkpoint", False):
            _restore_callbacks(trainer)

    def start_time(self, start: float) -> float:
        """``start`` moved back by the time that steps before the restored snapshot took."""
        return start - self._elapsed

    def stepped(self, trainer: Any) -> None:
        """All that the script wants after a step, or an epoch, is done: logged, evaluated, saved."""
        if trainer is not self._trainer:
            return
        step, control = trainer.state.global_step, trainer.control
        if control.should_training_stop or control.should_epoch_stop:
            return
        # At an epoch's last step there is more to come: what is to be done after the epoch. Then this is called again.
        epoch = trainer.state.epoch or 0.0
        if float(epoch).is_integer() and not self._due:
            self._due = step > 0
            return
        self._due = False
        if step % self._place.every == 0:
            self.take(trainer, step)

    def take(self, trainer: Any, step: int) -> None:
        """Take a snapshot; see :meth:`taking.Taker.take`."""
        trainer.store_flos()  # talks to the other ranks, so it is outside of what may fail here alone
        self._taker.take(step, lambda: _size(trainer), lambda site: self._save(trainer, site), _OWN)

    def _save(self, trainer: Any, site: Path) -> None:
        with _as_first_of_node(trainer):
            _save(trainer, site, self._place.part == 0)
        self._save_loss(trainer, site)

    def _save_loss(self, trainer: Any, site: Path) -> None:
        if not hasattr(trainer, "_tr_loss"):
            return
        sums = {
            "loss": float(trainer._tr_loss.item()),
            "total": float(trainer._total_loss_scalar),
            "logged": trainer._globalstep_last_logged,
            "initial": trainer._initial_global_step,
            "elapsed": self._elapsed + time.monotonic() - self._since,
        }
        (site / _loss_file(self._place.rank)).write_text(json.dumps(sums))


def _loss_file(rank: int) -> str:
    return f"lmj_loss_{rank}.json"


def _unfit(trainer: Any) -> str | None:
    """Why no snapshot of ``trainer`` can be taken; None: they can."""
    missing = [name for name in _NEEDED if not hasattr(trainer, name)]
    if missing:
        return f"this version of transformers has no Trainer.{missing[0]}"
    if getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False):
        return "FSDP and DeepSpeed share the state among the ranks, and a lost rank's share would be lost with it"
    if getattr(trainer, "is_distributed_loading_by_transformers", False):
        return "the model is sharded among the ranks"
    return None


def _script_step(trainer: Any, resumes: Any) -> int | None:
    """The step of the checkpoint that the script itself resumes from; None: it does not, or that has none."""
    if resumes is True:
        saved = [
            (int(named[1]), path)
            for path in Path(trainer.args.output_dir).glob("checkpoint-*")
            if (named := re.fullmatch(r"checkpoint-(\d+)", path.name)) is not None
        ]
        resumes = max(saved)[1] if saved else None
    if not resumes:
        return None
    try:
        return int(json.loads((Path(resumes) / _STATE).read_text())["global_step"])
    except (OSError, ValueError, KeyError):  # it is none of a Trainer, or broken: that is for the Trainer to say
        return None


@contextlib.contextmanager
def _as_first_of_node(trainer: Any) -> Iterator[None]:
    """Each node's first process saves, and nothing that resuming does not need: tokenizers take longer than many a model."""
    args, kept = trainer.args, (trainer.args.save_on_each_node, trainer.processing_class, trainer.data_collator)
    args.save_on_each_node, trainer.processing_class, trainer.data_collator = True, None, None
    # A model writes on the job's first rank alone, whatever the Trainer says.
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    everywhere = hasattr(model, _WHERE)
    if everywhere:
        model.__dict__[_WHERE] = lambda is_main_process: is_main_process
    logs = sys.modules["transformers.utils.logging"]
    # Its public switch is that of the hub's bars, too, which may be set otherwise and complain.
    bars = getattr(logs, "_tqdm_active", True)
    logs._tqdm_active = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        logs._tqdm_active = bars  # type: ignore[attr-defined]
        if everywhere:
            del model.__dict__[_WHERE]
        args.save_on_each_node, trainer.processing_class, trainer.data_collator = kept


def _save(trainer: Any, site: Path, first: bool) -> None:
    """What the Trainer's own checkpoint has, by its own code; the script's own checkpoints, rotation and best are left alone."""
    folder = str(site)
    trainer._save_rng_state(folder)
    trainer.save_model(folder, _internal_call=True)
    trainer._save_optimizer_and_scheduler(folder)
    trainer._save_scaler(folder)
    if first:
        state = copy.copy(trainer.state)
        state.stateful_callbacks = _callback_states(trainer)
        state.save_to_json(str(site / _STATE))


def _stateful(trainer: Any) -> list[Any]:
    """Callbacks that say a state, and the Trainer's control."""
    kind = sys.modules["transformers.trainer_callback"].ExportableState
    return [one for one in [*trainer.callback_handler.callbacks, trainer.control] if isinstance(one, kind)]


def _callback_states(trainer: Any) -> dict[str, Any]:
    states: dict[str, list[Any]] = {}
    for one in _stateful(trainer):
        states.setdefault(type(one).__name__, []).append(one.state())
    return {name: found if len(found) > 1 else found[0] for name, found in states.items()}


def _restore_callbacks(trainer: Any) -> None:
    """Their attributes, in the objects that the script made: patience must not begin anew."""
    left = {name: found if isinstance(found, list) else [found] for name, found in trainer.state.stateful_callbacks.items()}
    for one in _stateful(trainer):
        found = left.get(type(one).__name__)
        if one is not trainer.control and found:
            for name, value in found.pop(0).get("attributes", {}).items():
                setattr(one, name, value)


def _size(trainer: Any) -> int:
    """Bytes of the model and of what its optimizer holds."""
    return memory.sizes(dict(trainer.model.state_dict())) + memory.sizes(trainer.optimizer.state_dict()["state"])


def _patch(memories: Memory, module: ModuleType) -> None:
    """Put ``memories`` into the class ``Trainer`` of ``module``. Methods that it has under no such name are left alone."""
    kind = module.Trainer
    kind.__init__ = _with_callback(kind.__init__, memories, module.TrainerCallback)
    kind.train = _with_resume(kind.train, memories)
    if hasattr(kind, "_maybe_log_save_evaluate"):
        kind._maybe_log_save_evaluate = _with_snapshot(kind._maybe_log_save_evaluate, memories)
    if hasattr(kind, "_finalize_training"):
        kind._finalize_training = _with_time(kind._finalize_training, memories)


def _with_callback(real: Any, memories: Memory, base: type) -> Any:
    @functools.wraps(real)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - it is one
        real(self, *args, **options)
        trainer = self

        class MemoryCallback(base):  # type: ignore[misc]
            """Its sums go on before the first step."""

            def on_train_begin(self, *_: Any, **__: Any) -> None:
                memories.started(trainer)

        trainer.add_callback(MemoryCallback())

    return __init__


def _with_resume(real: Any, memories: Memory) -> Any:
    @functools.wraps(real)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        try:
            return real(self, memories.begin(self, resume_from_checkpoint), *args, **options)
        finally:
            memories.end()

    return train


def _with_snapshot(real: Any, memories: Memory) -> Any:
    @functools.wraps(real)
    def _maybe_log_save_evaluate(self: Any, *args: Any, **options: Any) -> Any:
        result = real(self, *args, **options)
        memories.stepped(self)
        return result

    return _maybe_log_save_evaluate


def _with_time(real: Any, memories: Memory) -> Any:
    @functools.wraps(real)
    def _finalize_training(self: Any, trial: Any, samples: Any, start_time: float) -> Any:
        return real(self, trial, samples, memories.start_time(start_time))

    return _finalize_training
