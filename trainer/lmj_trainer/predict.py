"""``predict MODEL [TEXT ...]``: labels for texts."""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmj_api.base import Message
from lmj_api.protocol import USER_ERROR
from lmj_trainer.classifier import Classifier
from lmj_trainer.cli import Parser
from lmj_trainer.data.progress import Pace
from lmj_trainer.data.rows import Rows
from lmj_trainer.data.tokens import encode
from lmj_trainer.errors import UserError

_BATCH = 32
_HOW = 'lmj predict {model} "a text", or lines on stdin: lmj predict {model} < texts.txt'


class Prediction(Message):
    """What the model says of one text."""

    text: str
    """The text, or the two of a pair with a tab between."""
    label: str
    """The likeliest label."""
    probability: float
    """Its probability."""
    probabilities: dict[str, float]
    """The probability of each label."""


def predict(classifier: Classifier, texts: Sequence[str], pace: Pace) -> list[Prediction]:
    """A prediction for each of ``texts``. A text with a tab is a pair."""
    pairs = [text.split("\t") for text in texts]
    parts = len(pairs[0])
    for number, pair in enumerate(pairs, 1):
        if len(pair) != parts or parts > 2:
            raise UserError(
                f"text {number} has {len(pair)} parts (a tab between them): give each text one part, or each the two of a pair"
            )
    import pyarrow as pa

    columns = [pa.chunked_array([pa.array([pair[part] for pair in pairs], pa.large_string())]) for part in range(parts)]
    rows = Rows.of([f"text {part + 1}" for part in range(parts)], columns, [None] * len(texts), None, "the input")
    longest = classifier.usual_length
    split = encode(
        classifier.tokenizer, rows, np.zeros(len(texts), np.int64), longest, classifier.types and parts == 2, pace, "the input"
    )
    results: list[Prediction] = []
    for logits, _ in classifier.logits(split, _BATCH):
        for chances in logits.double().softmax(-1).tolist():
            if not all(map(math.isfinite, chances)):
                raise UserError("the model's outputs are not numbers: it was trained with a learning rate that is too high")
            best = max(range(len(chances)), key=chances.__getitem__)
            results.append(
                Prediction(
                    text=texts[len(results)],
                    label=classifier.labels[best],
                    probability=chances[best],
                    probabilities=dict(zip(classifier.labels, chances, strict=True)),
                )
            )
    return results


def main(argv: Sequence[str]) -> int:
    """``predict MODEL [TEXT ...] [-o json]``: a line for each text, of the arguments or of stdin. Returns the exit code."""
    parser = Parser(prog="lmj predict", description="Labels texts with a trained model.")
    parser.add_argument("model", type=Path, help="the model's folder, or its run's output folder")
    parser.add_argument(
        "text", nargs="*", help="the texts; without any, the lines of stdin. A tab separates the two texts of a pair"
    )
    parser.add_argument(
        "-o", dest="output", choices=["text", "json"], default="text", help="form of the output: json is one object a line"
    )
    try:
        arguments: argparse.Namespace = parser.parse_args(argv)
        if not arguments.text and sys.stdin.isatty():
            raise UserError(f"there is no text to predict: {_HOW.format(model=arguments.model)}")
        texts = arguments.text or [line.rstrip("\r\n") for line in sys.stdin]
        if not texts:
            raise UserError(f"stdin is empty, so there is no text to predict: {_HOW.format(model=arguments.model)}")
        results = predict(Classifier.load(arguments.model), texts, Pace(lambda line: print(line, file=sys.stderr)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    for result in results:
        print(result.to_json() if arguments.output == "json" else f"{result.label}\t{result.probability:.4f}\t{result.text}")
    return 0
