"""Writes ``questions.jsonl``: made-up notes, and questions that a part of a note answers, or that it does not answer.

Run it again and the same file comes out: ``python examples/data/make_questions.py``.
"""

import json
import random
from pathlib import Path

SEED = 2025
ROWS = 3000

FIRST = ["Ada", "Boris", "Clara", "Dan", "Elif", "Femi", "Greta", "Hugo", "Iris", "Jonas"]
LAST = ["Archer", "Brook", "Castle", "Field", "Hill", "Marsh", "Stone", "Waters"]
PLACES = ["Brook Hill", "Castle Marsh", "Field Harbour", "Hill Waters", "Stone Bridge", "Marsh End"]
THINGS = ["an old mill", "a boat", "two houses", "a museum", "a small school", "the bridge"]
MONTHS = ["March", "May", "June", "August", "October", "December"]
FACTS = {
    "who": ("Who wrote it down?", "{} wrote it down."),
    "where": ("Where was it?", "It was in {}."),
    "what": ("What was sold?", "They sold {}."),
    "when": ("When did it happen?", "It happened in {}."),
}


def value(rng: random.Random, fact: str) -> str:
    """One of those of ``fact``."""
    if fact == "who":
        return f"{rng.choice(FIRST)} {rng.choice(LAST)}"
    if fact == "when":
        return f"{rng.choice(MONTHS)} {rng.randrange(1800, 2000)}"
    return rng.choice(PLACES if fact == "where" else THINGS)


def row(rng: random.Random) -> dict[str, object]:
    """A row."""
    facts = rng.sample(sorted(FACTS), k=3)
    values = {fact: value(rng, fact) for fact in facts}
    context = " ".join(FACTS[fact][1].format(values[fact]) for fact in facts)
    asked = rng.choice(facts) if rng.random() < 0.85 else next(fact for fact in FACTS if fact not in facts)
    found = [values[asked]] if asked in values else []
    starts = [context.index(answer) for answer in found]
    return {"question": FACTS[asked][0], "note": context, "answers": {"text": found, "answer_start": starts}}


def main(folder: Path = Path(__file__).parent) -> None:
    """Writes the file into ``folder``."""
    rng = random.Random(SEED)
    lines = [json.dumps(row(rng), ensure_ascii=False) + "\n" for _ in range(ROWS)]
    (folder / "questions.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
