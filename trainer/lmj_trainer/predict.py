"""``predict MODEL [TEXT ...]``: labels for texts."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmj_api.base import Message
from lmj_api.protocol import USER_ERROR
from lmj_trainer.cli import Parser
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.errors import UserError
from lmj_trainer.saved_model import SavedModel

_BATCH = 32
_HOW = 'lmj predict {model} "a text", or lines on stdin: lmj predict {model} < texts.txt'


def predict(saved: SavedModel, texts: Sequence[str], ticker: Ticker) -> list[tuple[str, Message]]:
    """A prediction for each of ``texts``: for people, and as JSON."""
    task, rows = saved.task, saved.task.rows(texts)
    types = saved.types and len(rows.texts) == 2
    results: list[tuple[str, Message]] = []
    for start in range(0, len(texts), _BATCH):
        part = texts[start : start + _BATCH]
        # In place of labels, numbers of what has one: there are no more of them than characters.
        ids = np.arange(sum(map(len, part)) + len(part), dtype=np.int64)
        of_part = rows.take(np.arange(start, start + len(part)))
        split = task.encode(saved.tokenizer, of_part, ids, saved.usual_length, types, ticker, "the input")
        for output, targets in saved.outputs(split, _BATCH):
            results += task.predictions(output, targets, part, saved.labels)
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
        results = predict(SavedModel.load(arguments.model), texts, Ticker(lambda line: print(line, file=sys.stderr)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    for line, message in results:
        print(message.to_json() if arguments.output == "json" else line)
    return 0
