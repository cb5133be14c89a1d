"""The tool that breaks the code: each mutant is another program, its name outlives edits, and the list of equivalent ones cannot rot."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mutants import mutant as mutant_module
from mutants.known import StaleError, equivalent
from mutants.mutant import Mutant, all_mutants
from mutants.operators import mutate, mutations
from mutants.swap import Functions

SOURCE = '''
"""A module."""

LIMIT = 3


def choose(values: list[int], *, wide: bool = False) -> int | None:
    """The first that is small enough."""
    total = 0
    for value in values:
        if value < LIMIT and not wide:
            total += value
            continue
        if value is None:
            raise ValueError("none")
        values.append(min(value, 7))
        values.sort()
    return total if total else -1
'''
FOUND = """
LIMIT = 3: 3 is 4
def choose(values: list[int], *, wide: bool = False) -> int | None:: False is True
total = 0: 0 is 1
if value < LIMIT and not wide:: condition negated, and is or, < is <=, < is >=, not removed
total += value: removed, += is -=
continue: removed
if value is None:: is is is not
raise ValueError("none"): removed
values.append(min(value, 7)): removed, swapped with: values.sort(), min is max, 7 is 8
values.sort(): removed
return total if total else -1: returns None, choice turned, minus removed, 1 is 2
"""


def found(source: str) -> dict[str, set[str]]:
    lines = source.splitlines()
    whats: dict[str, set[str]] = {}
    for m in mutations(ast.parse(source), ordered=True):
        whats.setdefault(lines[m.line - 1].strip(), set()).add(m.what)
    return whats


def test_what_is_changed() -> None:
    expected = [line.rpartition(": ") if "swapped" not in line else line.partition("): ") for line in FOUND.split("\n") if line]
    assert found(SOURCE) == {
        text + (")" if separator.startswith(")") else ""): set(whats.split(", ")) for text, separator, whats in expected
    }


def test_each_is_another_program() -> None:
    before = ast.unparse(ast.parse(SOURCE))
    count = sum(1 for _ in mutations(ast.parse(SOURCE), ordered=True))
    programs = [ast.unparse(mutate(SOURCE, number, ordered=True)) for number in range(count)]
    assert before not in programs
    assert len(set(programs)) == count
    for program in programs:
        compile(program, "mutant", "exec")
    with pytest.raises(IndexError):
        mutate(SOURCE, count, ordered=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutant_module, "ROOT", tmp_path)
    (tmp_path / "one.py").write_text(SOURCE)
    return tmp_path


def keys(mutants: list[Mutant]) -> list[tuple[str, str, str]]:
    return sorted(m.key for m in mutants)


def test_a_name_outlives_edits_elsewhere_and_is_nobody_else_s(project: Path) -> None:
    before = list(all_mutants(("*.py",)))
    assert len({m.key for m in before}) == len(before)
    drawn = keys(sorted(before, key=lambda m: m.rank(5))[:8])
    (project / "one.py").write_text("# a comment\n\n" + SOURCE)
    after = list(all_mutants(("*.py",)))
    assert keys(after) == keys(before)
    assert keys(sorted(after, key=lambda m: m.rank(5))[:8]) == drawn
    assert keys(sorted(after, key=lambda m: m.rank(6))[:8]) != drawn


def test_an_entry_of_what_is_gone_is_an_error(project: Path) -> None:
    mutants, known = list(all_mutants(("*.py",))), project / "equivalent.toml"
    entry = '[[equivalent]]\nfile = "one.py"\nline = "total = 0"\nwhat = "0 is {0}"\nwhy = "{1}"\n'
    known.write_text(entry.format(1, "it is so"))
    assert equivalent(mutants, known) == {("one.py", "total = 0", "0 is 1"): "it is so"}
    known.write_text(entry.format(2, "it is so"))
    with pytest.raises(StaleError, match=r"there is no mutant one.py | total = 0 | 0 is 2"):
        equivalent(mutants, known)
    for text in (entry.format(1, " "), 2 * entry.format(1, "it is so")):
        known.write_text(text)
        with pytest.raises(ValueError, match="twice, or without a reason"):
            equivalent(mutants, known)


def test_the_project_s_own_list_is_in_order() -> None:
    equivalent(list(all_mutants()))


def test_a_function_that_is_there_already_is_changed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mutants import swap

    monkeypatch.setattr(swap, "ROOT", project)
    names: dict[str, object] = {}
    exec(compile(SOURCE, str(project / "one.py"), "exec"), names)
    choose = names["choose"]
    functions = Functions({"one.py"})
    by_name = {(m.text, m.what): m for m in all_mutants(("*.py",))}
    assert choose([1, 2]) == 3  # type: ignore[operator]
    assert not functions.change(by_name["LIMIT = 3", "3 is 4"]), "that runs when the module is imported"
    assert functions.change(by_name["total += value", "removed"])
    assert choose([1, 2]) == -1  # type: ignore[operator]
