"""Writes ``reviews.csv`` and ``reviews-test.csv``: short made-up reviews whose sentiment cannot be read off single words.

Every word of praise and of blame is used in reviews of both labels: negation turns it around ("there was nothing clumsy about the plot"), and of
mixed reviews the main clause decides ("although the acting was superb, the plot was clumsy"). The test file is made of sentence
templates (a frame with a kind of clause in each place) that the training file does not have.

Run it again and the same files come out: ``python examples/data/make_reviews.py``.
"""

import csv
import random
from pathlib import Path

SEED = 2024
TRAIN_ROWS = 9000
TEST_ROWS = 1500

DOMAINS = {
    "film": ["acting", "plot", "soundtrack", "ending", "dialogue", "camerawork", "casting", "pacing"],
    "restaurant": ["soup", "service", "menu", "dessert", "waiter", "kitchen", "bread", "wine"],
    "hotel": ["room", "bed", "breakfast", "lobby", "staff", "pool", "view", "bathroom"],
    "book": ["prose", "story", "hero", "chapter", "cover", "style", "opening", "narrator"],
    "gadget": ["battery", "screen", "keyboard", "speaker", "camera", "charger", "case", "software"],
}
PRAISE = ["superb", "lovely", "brilliant", "charming", "excellent", "delightful", "wonderful", "impressive", "pleasant", "clever"]
BLAME = ["awful", "clumsy", "dreadful", "boring", "terrible", "annoying", "poor", "disappointing", "horrible", "dull"]

PLAIN = ("the {noun} was {word}", "the {noun} was really {word}", "i found the {noun} {word}", "the {noun} seemed {word} to me")
NEGATED = (
    "the {noun} was not {word}",
    "the {noun} was not {word} at all",
    "the {noun} was hardly {word}",
    "the {noun} was never {word}",
    "there was nothing {word} about the {noun}",
    "nobody could call the {noun} {word}",
)
# {main} decides, {aside} says the opposite.
FRAMES = (
    "{main}",
    "{aside}, but {main}",
    "although {aside}, {main}",
    "{main}, although {aside}",
    "even though {aside}, {main}",
    "{main}, even though {aside}",
    "{aside}; still, {main}",
    "{main}, and {more}",
    "i admit that {aside}, but {main}",
    "i admit that even though {aside}, {main}",
    "{aside}; still, {main}, and {more}",
)
# In the test file only: new frames of known parts, and known frames with clauses that they never had.
HELD_OUT_FRAMES = (
    "i admit that although {aside}, {main}",
    "{aside}, but {main}, and {more}",
    "i admit that {aside}; still, {main}",
)
OPENINGS = ("", "", "", "honestly, ", "to be fair, ", "in short, ", "this {domain}: ", "about the {domain}: ")


NEGATION = 0.3
"""Part of the clauses that are negated."""
SINGLE = 0.45
"""Part of the training reviews that are a single clause."""


def held_out(frame: str, clause: str) -> bool:
    """Whether a known frame with this clause in its main place is kept for the test: about one in six."""
    clauses = PLAIN + NEGATED
    return frame != "{main}" and (FRAMES.index(frame) * 5 + clauses.index(clause)) % 6 == 0


def clause_of(rng: random.Random, positive: bool, nouns: list[str], template: str | None = None) -> str:
    """A clause that praises (or blames) a noun that is taken out of ``nouns``."""
    chosen = template or rng.choice(NEGATED if rng.random() < NEGATION else PLAIN)
    words = PRAISE if positive != (chosen in NEGATED) else BLAME
    return chosen.format(noun=nouns.pop(), word=rng.choice(words))


def review(rng: random.Random, test: bool) -> tuple[str, str]:
    """A text and its label."""
    positive = rng.random() < 0.5
    domain = rng.choice(list(DOMAINS))
    nouns = rng.sample(DOMAINS[domain], 3)
    new_frame = test and rng.random() < 0.5
    while True:
        single = not test and rng.random() < SINGLE
        frame = FRAMES[0] if single else rng.choice(HELD_OUT_FRAMES if new_frame else FRAMES[1:])
        template = rng.choice(NEGATED if rng.random() < NEGATION else PLAIN)
        if new_frame or held_out(frame, template) == test:
            break
    text = rng.choice(OPENINGS).format(domain=domain) + frame.format(
        main=clause_of(rng, positive, nouns, template),
        aside=clause_of(rng, not positive, nouns),
        more=clause_of(rng, positive, nouns),
    )
    return text[0].upper() + text[1:] + ".", "positive" if positive else "negative"


def reviews(rng: random.Random, rows: int, test: bool) -> list[tuple[str, str]]:
    """``rows`` different reviews."""
    found: dict[str, str] = {}
    while len(found) < rows:
        text, label = review(rng, test)
        found[text] = label
    return list(found.items())


def write(path: Path, rows: list[tuple[str, str]]) -> None:
    """Writes a CSV file with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["review", "sentiment"])
        writer.writerows(rows)


def main(folder: Path = Path(__file__).parent) -> None:
    """Writes both files into ``folder``."""
    rng = random.Random(SEED)
    write(folder / "reviews.csv", reviews(rng, TRAIN_ROWS, test=False))
    write(folder / "reviews-test.csv", reviews(rng, TEST_ROWS, test=True))


if __name__ == "__main__":
    main()
