"""``predict MODEL [TEXT ...]``: labels for texts, or how they go on."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lmj_api.protocol import USER_ERROR
from lmj_trainer.cli import Parser
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.errors import UserError
from lmj_trainer.task.saved_model import SavedModel

_HOW = 'lmj predict {model} "a text", or lines on stdin: lmj predict {model} < texts.txt'


def main(argv: Sequence[str]) -> int:
    """``predict MODEL [TEXT ...] [-o json]``: a line for each text, of the arguments or of stdin. Returns the exit code."""
    parser = Parser(
        prog="lmj predict", description="Labels texts with a trained model, or goes on with them, as it was trained to."
    )
    parser.add_argument("model", type=Path, help="the model's folder, or its run's output folder")
    parser.add_argument(
        "text", nargs="*", help="the texts; without any, the lines of stdin. A tab separates the two texts of a pair"
    )
    parser.add_argument("--chat", action="store_true", help="the texts are messages, which a language model is to answer")
    parser.add_argument(
        "-o", dest="output", choices=["text", "json"], default="text", help="form of the output: json is one object a line"
    )
    try:
        arguments: argparse.Namespace = parser.parse_intermixed_args(argv)
        if not arguments.text and sys.stdin.isatty():
            raise UserError(f"there is no text to predict: {_HOW.format(model=arguments.model)}")
        texts = arguments.text or [line.rstrip("\r\n") for line in sys.stdin]
        if not texts:
            raise UserError(f"stdin is empty, so there is no text to predict: {_HOW.format(model=arguments.model)}")
        saved = replace(SavedModel.load(arguments.model), chat=arguments.chat)
        if arguments.chat and saved.task.pipeline != "text-generation":
            raise UserError(f"--chat is for a model that writes: {arguments.model} is a {saved.task.noun}")
        results = saved.task.predict(saved, texts, Ticker(lambda line: print(line, file=sys.stderr)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    for line, message in results:
        print(message.to_json() if arguments.output == "json" else line)
    return 0
