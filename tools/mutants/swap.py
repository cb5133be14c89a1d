"""A mutant in a process that has imported everything: the functions that it changes get other code."""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from types import CodeType, FunctionType

from mutants.mutant import ROOT, Mutant, ordered
from mutants.operators import mutate

_Place = tuple[str, str, int]
"""File, qualified name and first line of a function."""


class Functions:
    """All functions of the files that may be changed, as they are in this process."""

    def __init__(self, files: set[str]) -> None:
        """``files``: from the project's root."""
        paths = {str(ROOT / file) for file in files}
        self._at: dict[_Place, list[FunctionType]] = defaultdict(list)
        gc.unfreeze()
        for found in gc.get_objects():
            if type(found) is FunctionType and found.__code__.co_filename in paths:
                self._at[_place(found.__code__)].append(found)
        gc.freeze()

    def change(self, mutant: Mutant) -> bool:
        """Whether it could be done: not of what runs at import, nor where a function has other free variables then."""
        path = ROOT / mutant.file
        source = path.read_text("utf-8")
        before = _codes(compile(ast.parse(source), path, "exec"))
        after = _codes(compile(mutate(source, mutant.number, ordered=ordered(mutant.file)), path, "exec"))
        changed = [place for place in before if after.get(place) != before[place]]
        there = [(function, after[place]) for place in changed for function in self._at[place] if place in after]
        if not mutant.function or not there or any(f.__code__.co_freevars != code.co_freevars for f, code in there):
            return False
        for function, code in there:
            function.__code__ = code
        return True


def _place(code: CodeType) -> _Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> dict[_Place, CodeType]:
    """Functions that are in no other function."""
    found: dict[_Place, CodeType] = {}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & 2:  # CO_NEWLOCALS: a function; a class's body has not got it
                found[_place(inner)] = inner
            else:
                found |= _codes(inner)
    return found
