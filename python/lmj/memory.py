"""``lmj.state`` and ``lmj.step``: two lines that let a loop of one's own go on from memory after a failure."""

import importlib
import os
from typing import Any, Protocol

from lmj.errors import JobError

_FOLDER = "LMJ_MEMORY_DIR"
_CODE = "lmj_trainer.launch.memory.plain"


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a scaler: what can say its state and take it back."""

    def state_dict(self) -> dict[str, Any]:
        """All of it."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take it back."""


def state(*objects: Stateful, per_rank: tuple[Stateful, ...] = (), accelerator: Any = None) -> int:
    """Say what a snapshot of this script's loop has. Returns the steps that are done: the loop goes on from there.

    Where there is a snapshot to go on from, the objects and the random numbers are brought to it at once. Call it once, behind all that
    makes them. ``objects`` are the same on all ranks, as a model under DDP and its optimizer; ``per_rank``: those that are not, as a loader
    that knows its place. ``accelerator``: one of Accelerate; all that it has prepared is then in the snapshot, too. State that is sharded
    among ranks is not kept, which is said.

    Outside of a job with ``command.memory`` it does nothing, and returns 0. Raises :class:`lmj.JobError`: it was called before, or
    the snapshot has other objects.

    >>> done = state()  # state(model, optimizer, scheduler)
    >>> for number in range(done, 3):  # the batch of a step is a function of its number
    ...     step()  # behind optimizer.step() and scheduler.step()
    """
    if not os.environ.get(_FOLDER):
        return 0
    try:
        return int(importlib.import_module(_CODE).state(objects, per_rank, accelerator))
    except ValueError as error:
        raise JobError(str(error)) from None


def step() -> None:
    """Say that a step is done: behind all that it changes. Every ``command.memory.every``-th is kept in memory.

    A snapshot that fails, as where there is no room, is a line on stderr, and the script goes on. Outside of a job with
    ``command.memory`` it does nothing. Raises :class:`lmj.JobError`: :func:`state` was not called.
    """
    if not os.environ.get(_FOLDER):
        return
    try:
        importlib.import_module(_CODE).step()
    except ValueError as error:
        raise JobError(str(error)) from None
