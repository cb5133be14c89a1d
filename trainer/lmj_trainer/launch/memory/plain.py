"""Snapshots of a loop that registers its state: what ``lmj.state`` and ``lmj.step`` do in a launched script."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor

from lmj_trainer.launch.memory import folder as memory
from lmj_trainer.launch.memory import randomness
from lmj_trainer.launch.memory.place import Place
from lmj_trainer.launch.memory.taking import Taker

log = logging.getLogger("lmj.memory")

_OWN = r"rank-\d+\.pt|random_states_\d+\.pkl"
_COMMON = "state.pt"


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a scaler, a loader that knows its place: what can say its state and take it back."""

    def state_dict(self) -> dict[str, Any]:
        """All of it."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take it back."""


class Loop:
    """A loop's state, and its snapshots."""

    def __init__(self, place: Place, objects: Sequence[Stateful], per_rank: Sequence[Stateful], accelerator: Any = None) -> None:
        """``objects``: the same on all ranks; ``per_rank``: not. ``accelerator``: of Accelerate, whose prepared objects are all of it."""
        self._place, self._objects, self._per_rank, self._accelerator = place, list(objects), list(per_rank), accelerator
        self._taker = Taker(place)
        self.steps = 0
        """That the state has behind it."""
        self._off = self._sharded()
        if self._off:
            log.warning("command.memory does nothing here: the state is sharded among the ranks")

    def _sharded(self) -> bool:
        kind = str(getattr(self._accelerator, "distributed_type", ""))
        tensors = [value for one in self._objects if isinstance(one, torch.nn.Module) for value in one.parameters()]
        return any(isinstance(value, DTensor) for value in tensors) or kind.rpartition(".")[2] in (
            "FSDP",
            "DEEPSPEED",
            "MEGATRON_LM",
        )

    def restore(self) -> int:
        """Go back to the snapshot that the place names, if there is one; the steps that are done. Raises what ``load_state_dict`` raises."""
        place = self._place
        found = None if place.restore is None or self._off else memory.read(place.restore)
        if place.part == 0 and not self._off:
            memory.forget(place.folder, place.view, None if found is None else found.path)
        if found is None:
            if place.restore is not None and not self._off:
                log.warning("there is no complete snapshot in %s: the script begins anew", place.restore)
            return 0
        if self._accelerator is None:
            _load(self._objects, _read(found.path / _COMMON))
        else:
            self._accelerator.load_state(str(found.path))
            _load(self._objects, _read(found.path / _COMMON))
        own = found.path / f"rank-{place.rank}.pt"
        if own.is_file():
            said = _read(own)
            _load(self._per_rank, said["objects"])
            randomness.restore(said["randomness"])
        else:
            log.warning(
                "rank %d has nothing of its own in the snapshot of step %d, of other ranks: it draws other random numbers%s",
                place.rank,
                found.step,
                ", and per_rank is as the script made it" if self._per_rank else "",
            )
        self.steps = found.step
        return found.step

    def step(self) -> None:
        """Another step is done: every so many, take a snapshot. What goes wrong is said, and the script goes on."""
        self.steps += 1
        if self._off or self.steps % self._place.every:
            return
        self._taker.take(self.steps, self._size, self._save, _OWN)

    def _save(self, site: Path) -> None:
        place = self._place
        own = {"objects": [one.state_dict() for one in self._per_rank], "randomness": randomness.states()}
        torch.save(own, site / f"rank-{place.rank}.pt")
        if self._accelerator is not None:
            _save_accelerator(self._accelerator, site)
        if place.part == 0:
            torch.save([one.state_dict() for one in self._objects], site / _COMMON)

    def _size(self) -> int:
        own = len(self._per_rank) and self._place.world * memory.sizes([one.state_dict() for one in self._per_rank])
        return memory.sizes([one.state_dict() for one in self._objects]) + own + self._prepared_size()

    def _prepared_size(self) -> int:
        if self._accelerator is None:
            return 0
        kept = [*self._accelerator._models, *self._accelerator._optimizers]
        return memory.sizes([one.state_dict() for one in kept])


def _save_accelerator(accelerator: Any, site: Path) -> None:
    """By its own code, on each node, and without a trace in the names of the script's own checkpoints."""
    project = accelerator.project_configuration
    kept = project.automatic_checkpoint_naming, project.iteration, project.save_on_each_node
    project.automatic_checkpoint_naming, project.save_on_each_node = False, True
    try:
        accelerator.save_state(str(site))
    finally:
        project.automatic_checkpoint_naming, project.iteration, project.save_on_each_node = kept


def _load(objects: Sequence[Stateful], saved: Sequence[dict[str, Any]]) -> None:
    if len(objects) != len(saved):
        raise ValueError(f"lmj.state: the snapshot has {len(saved)} objects and {len(objects)} are given: the script has changed")
    for one, state in zip(objects, saved, strict=True):
        one.load_state_dict(state)


def _read(path: Path) -> Any:
    # It is this job's own, written by this script: its objects' states may be of any kind.
    return torch.load(path, map_location="cpu", weights_only=False)


_loops: list[Loop] = []
"""The one that this process has registered."""


def state(objects: Sequence[Stateful], per_rank: Sequence[Stateful], accelerator: Any) -> int:
    """Register a loop's state and restore it: the steps that are done. Raises ValueError: there is one already, or the environment is wrong."""
    place = Place.of()
    if place is None:
        return 0
    if _loops:
        raise ValueError("lmj.state was called before: a script registers the state of one loop")
    loop = Loop(place, objects, per_rank, accelerator)
    _loops.append(loop)
    return loop.restore()


def step() -> None:
    """Count a step of the registered loop. Raises ValueError: none is registered."""
    if Place.of() is None:
        return
    if not _loops:
        raise ValueError("lmj.step was called before lmj.state, which says what a snapshot has")
    _loops[0].step()
