"""What CONTRIBUTING says of the code's structure, where no linter says it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ["crds", "operator", "python", "trainer", "benchmarks", "tools", "examples"]
MOST_LINES = 60


def functions_of(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions below ``node``: they are statements, so expressions, most of a tree, are not looked at."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if not isinstance(child, ast.expr):
            yield from functions_of(child)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_is_long(folder: str) -> None:
    functions = [
        (path.relative_to(ROOT), node)
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in functions_of(ast.parse(path.read_text()))
    ]
    assert functions
    lengths = [((node.end_lineno or 0) - node.lineno + 1, f"{path}: {node.name}") for path, node in functions]
    assert [name for length, name in lengths if length > MOST_LINES] == []
