"""Files that are made from something else: written anew, or found stale."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def refresh(arguments: Sequence[str], make: Callable[[Path], str], stale: str) -> int:
    """Have the files in ``arguments`` contain what ``make`` gives for each; after ``--check`` only say which do not, with ``stale``.

    Exit code: 0, or 1 when ``--check`` finds one.
    """
    check = list(arguments[:1]) == ["--check"]
    code = 0
    for path in map(Path, arguments[check:]):
        text = make(path)
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        if check:
            print(f"{path} {stale} and commit it", file=sys.stderr)
            code = 1
        else:
            path.write_text(text, "utf-8")
    return code
