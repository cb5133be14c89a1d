"""The contract imports pydantic and the standard library, nothing else: it is in every image."""

import ast
import sys
from pathlib import Path

import lmj_api

ALLOWED = sys.stdlib_module_names | {"lmj_api", "pydantic", "pydantic_core"}


def test_the_contract_imports_pydantic_only() -> None:
    (folder,) = lmj_api.__path__
    foreign = set()
    for path in Path(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                foreign |= {alias.name.split(".")[0] for alias in node.names} - ALLOWED
            elif isinstance(node, ast.ImportFrom):
                foreign |= {(node.module or "").split(".")[0]} - ALLOWED
    assert foreign == set()
