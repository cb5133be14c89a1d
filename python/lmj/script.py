"""The script that this process runs: its file, and what ``lmj run`` was asked beside it."""

import sys
from dataclasses import dataclass
from pathlib import Path

from lmj.errors import JobError


@dataclass
class Asked:
    """What ``lmj run SCRIPT`` was asked; ``python SCRIPT`` asks nothing."""

    replicas: int = 1
    fresh: bool = False
    goes_on: bool = False


asked = Asked()
"""Of this process; ``python -m lmj`` sets it."""


_trained: list[object] = []
"""The one whose ``train()`` this process called."""


def require_only(trainer: object) -> None:
    """Raises :class:`lmj.JobError`: another trainer's ``train()`` came before, up to which the ranks run the script."""
    if _trained and _trained[0] is not trainer:
        raise JobError(
            "train: a script trains one Trainer, as its ranks run it up to the first train(): put the other into a script of its own"
        )
    _trained[:] = [trainer]


def file() -> Path:
    """The script, absolute. Raises :class:`lmj.JobError`: there is none, or it was given arguments, which the ranks would not see."""
    name = getattr(sys.modules["__main__"], "__file__", None)
    if name is None or not Path(name).is_file():
        raise JobError(
            "lmj.Trainer trains in scripts: each rank runs the file up to train(), and here is none; put this into a file"
        )
    if sys.argv[1:]:
        raise JobError(
            f"{name} was started with arguments ({' '.join(sys.argv[1:])}), which its ranks would not see: write them into it"
        )
    return Path(name).absolute()
