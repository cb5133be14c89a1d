"""A process's own import of one module, changed: named by ``LMJ_MUTANT``, which the processes that it starts inherit."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from mutants.mutant import ROOT, ordered
from mutants.operators import mutate

VARIABLE = "LMJ_MUTANT"


def module_of(file: str) -> str:
    """The dotted name of ``trainer/lmj_trainer/...py``."""
    return ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__")


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        file, number = os.environ[VARIABLE].rsplit(":", 1)
        source = Path(self.path).read_text("utf-8")
        code: CodeType = compile(mutate(source, int(number), ordered=ordered(file)), self.path, "exec")
        return code


class _Finder:
    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(name, spec.origin)
        return spec


def install() -> None:
    """From now on: before the module is imported."""
    file = os.environ[VARIABLE].rsplit(":", 1)[0]
    assert module_of(file) not in sys.modules, f"{file} is imported already"
    assert (ROOT / file).exists()
    sys.meta_path.insert(0, _Finder(module_of(file)))
