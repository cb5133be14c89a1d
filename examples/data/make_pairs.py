"""Writes ``pairs.jsonl``: made-up questions with an answer that fits or one that does not (another kind of answer to the same question).

Run it again and the same file comes out: ``python examples/data/make_pairs.py``.
"""

import json
import random
from pathlib import Path

SEED = 2024
ROWS = 4000

NAMES = ["Ada", "Boris", "Clara", "Dan", "Elif", "Femi", "Greta", "Hugo", "Iris", "Jonas"]
THINGS = ["bridge", "garden", "clock", "library", "tower", "engine", "kitchen", "market", "harbour", "museum"]
PLACES = ["in the north", "by the river", "near the station", "behind the church", "on the hill", "at the old mill"]
TIMES = ["last week", "in 1987", "before the war", "on Monday", "two years ago", "this morning"]
REASONS = [
    "because it rained",
    "because nobody came",
    "to save money",
    "because the old one broke",
    "to win a bet",
    "because it was late",
]

QUESTIONS = {
    "who": ("Who built the {thing}?", "Which person looked after the {thing}?", "Do you know who sold the {thing}?"),
    "where": ("Where is the {thing}?", "In which place did they put the {thing}?", "Do you know where the {thing} was built?"),
    "when": ("When was the {thing} closed?", "At what time did they open the {thing}?", "Do you know when the {thing} was sold?"),
    "why": ("Why was the {thing} closed?", "For what reason did they move the {thing}?", "Do you know why the {thing} was sold?"),
}
ANSWERS = {
    "who": ("It was {name}.", "I think {name} did.", "{name}, as far as I know."),
    "where": ("It was {place}.", "I think {place}.", "{place}, as far as I know."),
    "when": ("It was {time}.", "I think {time}.", "{time}, as far as I know."),
    "why": ("It was {reason}.", "I think {reason}.", "{reason}, as far as I know."),
}


def pair(rng: random.Random) -> dict[str, str]:
    """A row."""
    kind = rng.choice(list(QUESTIONS))
    fits = rng.random() < 0.5
    answer = kind if fits else rng.choice([other for other in ANSWERS if other != kind])
    fill = {
        "thing": rng.choice(THINGS),
        "name": rng.choice(NAMES),
        "place": rng.choice(PLACES),
        "time": rng.choice(TIMES),
        "reason": rng.choice(REASONS),
    }
    return {
        "question": rng.choice(QUESTIONS[kind]).format(**fill),
        "answer": rng.choice(ANSWERS[answer]).format(**fill),
        "label": "answer" if fits else "other",
    }


def main(folder: Path = Path(__file__).parent) -> None:
    """Writes the file into ``folder``."""
    rng = random.Random(SEED)
    lines = [json.dumps(pair(rng), ensure_ascii=False) + "\n" for _ in range(ROWS)]
    (folder / "pairs.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
