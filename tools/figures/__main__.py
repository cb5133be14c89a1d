"""Write the tables of measured figures into Markdown: ``python -m figures FILE...``, or ``--check FILE...`` to fail when one is stale.

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end -->``, and is made from ``benchmarks/results``.
"""

import sys

from generated import refresh

from figures.tables import filled


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 when ``--check`` finds a file stale."""
    words = "does not have the figures of benchmarks/results: run `make figures`"
    return refresh(arguments, lambda path: filled(path.read_text("utf-8")), words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
