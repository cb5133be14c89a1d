"""The table of memory in the guide to replicas is what is computed."""

import re
from pathlib import Path

from lmj_api.shards import most_beside, under_way, waiting

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "replicas.md"


def test_the_table_of_memory_is_right() -> None:
    table = re.findall(r"^\| (.*) \|$", GUIDE.read_text().partition("### Memory")[2], re.MULTILINE)
    head, *rows = [[cell.strip() for cell in line.split("|")] for line in table if not line.startswith("-")]
    assert head[0] == "Shards"
    counts = [int(name.split()[0]) for name in head[1:-1]]
    assert [int(row[0]) for row in rows] == [2, 4, 8, 16, 32]
    for row in rows:
        shards = int(row[0])
        for replicas, cell in zip(counts, row[1:-1], strict=True):
            assert cell == (beside(shards, replicas) if replicas <= shards else ""), (shards, replicas)
        assert row[-1] == f"{round(most_beside(shards, 1, shards)[0], 1):g}"


def beside(shards: int, replicas: int) -> str:
    """Of the replica with most: sums that wait, and messages."""
    both = [(waiting(shards, replicas, replica), sent) for replica, sent in enumerate(under_way(shards, replicas))]
    waits, messages = max(both, key=sum)
    return f"{waits} + {round(messages, 1):g}"
