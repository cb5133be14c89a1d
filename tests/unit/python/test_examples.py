"""The examples in docstrings and on the page: what can run here does, and what cannot is Python that names what there is."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import lmj

ROOT = Path(__file__).parents[3]
MODULES = sorted(module.name for module in pkgutil.iter_modules(lmj.__path__))


@pytest.mark.parametrize("name", ["lmj", *(f"lmj.{module}" for module in MODULES)])
def test_examples_in_docstrings_are_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert result.failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    found = [
        test
        for module in ("lmj", "lmj.job", "lmj.running", "lmj.client", "lmj.async_client")
        for test in finder.find(importlib.import_module(module))
        if test.examples
    ]
    assert len(found) >= 5


def names_of(code: str) -> set[str]:
    """What it takes from ``lmj``."""
    return {
        node.attr
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lmj"
    }


def test_what_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    blocks = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    assert len(blocks) >= 4
    named = set().union(*map(names_of, blocks))
    assert {"Job", "run", "Client", "AsyncClient"} <= named
    assert [name for name in named if not hasattr(lmj, name)] == []
