"""Write the tables of measured figures into Markdown: ``python -m figures FILE...``, or ``--check FILE...`` to fail when one is stale.

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end -->``, and is made from ``benchmarks/results``.
"""

import sys
from pathlib import Path

from figures.tables import filled


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 when ``--check`` finds a file stale."""
    check = arguments[:1] == ["--check"]
    stale = 0
    for path in map(Path, arguments[check:]):
        text = path.read_text("utf-8")
        new = filled(text)
        if new == text:
            continue
        if check:
            print(f"{path} does not have the figures of benchmarks/results: run `make figures` and commit it", file=sys.stderr)
            stale = 1
        else:
            path.write_text(new, "utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
