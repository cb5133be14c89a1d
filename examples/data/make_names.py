"""Writes ``names.jsonl``: made-up sentences whose words are tagged with the persons, places and organisations in them.

Run it again and the same file comes out: ``python examples/data/make_names.py``.
"""

import json
import random
from pathlib import Path

SEED = 2024
ROWS = 2000

FIRST = ["Ada", "Boris", "Clara", "Dan", "Elif", "Femi", "Greta", "Hugo", "Iris", "Jonas"]
LAST = ["Archer", "Brook", "Castle", "Field", "Hill", "Marsh", "Stone", "Waters"]
PLACES = ["Brook Hill", "Castle Marsh", "Field Harbour", "Hill Waters", "Stone Bridge", "Marsh End"]
KINDS = ["Bank", "Mill", "Museum", "Press", "School", "Works"]
SENTENCES = [
    "{person} moved from {place} to {place} last week .",
    "The {organisation} in {place} was founded by {person} .",
    "{organisation} sold the old {common} to {person} .",
    "Nobody at the {organisation} knew why {person} had left {place} .",
    "In {place} there is a {common} by the river .",
    '" We built the {common} " , said {person} of {organisation} .',
    "They walked up the {common} until they saw {place} .",
]
COMMON = ["bridge", "hill", "mill", "museum", "stone wall", "school", "castle", "marsh"]


def entity(rng: random.Random, kind: str) -> tuple[list[str], str]:
    """Words in place of ``{kind}``, and the entity's kind; empty: it is none."""
    if kind == "person":
        return rng.choice([[rng.choice(FIRST)], [rng.choice(FIRST), rng.choice(LAST)]]), "PER"
    if kind == "place":
        return rng.choice(PLACES).split(), "LOC"
    if kind == "organisation":
        return [rng.choice(LAST), rng.choice(KINDS)], "ORG"
    return rng.choice(COMMON).split(), ""


def row(rng: random.Random) -> dict[str, list[str]]:
    """A row."""
    tokens: list[str] = []
    tags: list[str] = []
    for word in rng.choice(SENTENCES).split():
        words, kind = entity(rng, word[1:-1]) if word.startswith("{") else ([word], "")
        tokens += words
        tags += [f"{'I' if place else 'B'}-{kind}" if kind else "O" for place in range(len(words))]
    return {"tokens": tokens, "tags": tags}


def main(folder: Path = Path(__file__).parent) -> None:
    """Writes the file into ``folder``."""
    rng = random.Random(SEED)
    lines = [json.dumps(row(rng), ensure_ascii=False) + "\n" for _ in range(ROWS)]
    (folder / "names.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
