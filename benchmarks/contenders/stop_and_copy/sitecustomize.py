"""Stop-and-copy: this project's own move, but training waits from the moment at which the copy begins until the target has all of it.

On PYTHONPATH of a job's processes this changes the source of a move when it is imported: nothing else of the project differs.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

MODULE = "lmj_trainer.follow.source"
PATIENCE_SECONDS = 120.0


class _Stopping(Loader):
    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        stop(module)


def stop(module: ModuleType) -> None:
    """Have its sources wait for their followers."""
    plain = module.Source.boundary

    def boundary(source: Any) -> None:
        plain(source)
        with source._turn:
            streams = list(source._streams.values())
            if not source._turn.wait_for(lambda: all(s.in_sync or s.over for s in streams), PATIENCE_SECONDS):
                raise RuntimeError(f"the copy took more than {PATIENCE_SECONDS:g} s")

    module.Source.boundary = boundary  # type: ignore[attr-defined]


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = _Stopping(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
