"""Has workers kill themselves at a moment that a test chooses.

On PYTHONPATH of a job's processes this changes the group's ``send`` and ``take`` when they are imported: where the folder LMJ_DYING has a
file ``RANK-MOMENT``, the worker of that rank removes it and dies at that moment of a step.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "lmj_trainer.group.group"
FLUSH_SECONDS = 5.0


def die(group: Any, moment: str) -> None:
    """End this process, if it is to end at this moment. What it sent before has arrived."""
    try:
        (Path(os.environ["LMJ_DYING"]) / f"{group.rank}-{moment}").unlink()
    except FileNotFoundError:
        return
    group.flush(FLUSH_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def decided(group: Any, kind: str, word: Any) -> None:
    """The leader has told a commit to the first, or this rank has heard it. After an evaluation it is the boundary that says who leaves."""
    if kind in ("commit", "boundary") and word is not None and word.get("decision", {}).get("pause"):
        die(group, "leaving")
    elif kind == "commit" and word is not None:
        die(group, "commit")


class _Mortal(Loader):
    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        send, take = module.Group.send, module.Group.take

        def mortal_send(group: Any, rank: int, kind: str, step: int, index: int = 0, payload: Any = None) -> None:
            send(group, rank, kind, step, index, payload)
            if kind in ("sums", "sum", "prepared"):
                die(group, kind)
            decided(group, kind, payload)

        def mortal_take(group: Any, kind: str, step: int, sender: int | None = None, index: int = 0, **more: Any) -> Any:
            taken = take(group, kind, step, sender, index, **more)
            if kind == "prepared":
                die(group, kind)
            decided(group, kind, taken)
            return taken

        module.Group.send, module.Group.take = mortal_send, mortal_take  # type: ignore[attr-defined]


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = _Mortal(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
