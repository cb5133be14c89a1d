"""Runs the code cells of the notebook that it is given, in order, where a loop runs, and prints what they show, as a notebook does."""

import ast
import asyncio
import json
import sys
from pathlib import Path
from typing import Any


async def main(file: str, cells: list[dict[str, Any]]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        shown = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        where = f"{file}:{cell['id']}"
        exec(compile(tree, where, "exec"), names)
        if (
            isinstance(shown, ast.Expr)
            and (value := eval(compile(ast.Expression(shown.value), where, "eval"), names)) is not None
        ):
            print(repr(value))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(Path(sys.argv[1]).read_text())["cells"]))
