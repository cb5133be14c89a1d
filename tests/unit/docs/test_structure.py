"""What CONTRIBUTING says of the code's structure, where no linter says it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ["crds", "operator", "python", "trainer", "benchmarks", "tools", "examples"]
MOST_LINES = 60
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements have statements."""


def functions_of(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions below ``node``: they are statements, so expressions, most of a tree, are not looked at."""
    for block in BLOCKS:
        for child in getattr(node, block, ()):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child
            yield from functions_of(child)


def lengths_of(path: Path) -> list[tuple[int, str]]:
    """Lines of each function in the file, with its name. Its tree is let go: the collector would go through all of them again and again."""
    tree = ast.parse(path.read_text())
    return [((node.end_lineno or 0) - node.lineno + 1, f"{path.relative_to(ROOT)}: {node.name}") for node in functions_of(tree)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_is_long(folder: str) -> None:
    lengths = [each for path in sorted((ROOT / folder).rglob("*.py")) for each in lengths_of(path)]
    assert lengths
    assert [name for length, name in lengths if length > MOST_LINES] == []


def test_functions_are_found_wherever_they_are() -> None:
    source = """
def first():
    if x:
        def in_if(): ...
    elif y:
        async def in_elif(): ...
    else:
        def in_else(): ...
    for x in y:
        def in_for(): ...
    else:
        def behind_for(): ...
    try:
        def in_try(): ...
    except OSError:
        def in_except(): ...
    finally:
        def in_finally(): ...
    match x:
        case 1:
            def in_case(): ...
class Some:
    async def method(self):
        async with x:
            def in_with(): ...
"""
    named = {name for name in source.replace("(", " ").split() if name.startswith(("in_", "behind_", "first", "method"))}
    assert {node.name for node in functions_of(ast.parse(source))} == named
    assert len(named) == 12
