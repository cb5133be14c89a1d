"""``evaluate MODEL DATA``: how good a trained model is on labelled rows."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lmj_api.protocol import USER_ERROR, Evaluation
from lmj_api.spec.dataset import MLM_PROBABILITY
from lmj_trainer.cli import Parser
from lmj_trainer.data.masking import Masking
from lmj_trainer.data.packing import WHOLE, packed
from lmj_trainer.data.source import DataSource
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.errors import UserError
from lmj_trainer.fetched import borrowed
from lmj_trainer.task.saved_model import SavedModel, model_folder
from lmj_trainer.trained import read_trained


def evaluate(
    folder: Path,
    data: str,
    text: Sequence[str],
    label: str | None,
    split: str,
    batch_size: int,
    max_length: int | None,
    ticker: Ticker,
) -> Evaluation:
    """The evaluation of the model in ``folder`` on ``split`` of ``data``. UserError: bad data or model."""
    source, say = DataSource(data), ticker.say
    rows = source.read(split, text, label, say)
    saved = SavedModel.load(folder)
    task = saved.task
    task.check(rows, say)
    if max_length is not None and not 2 <= max_length <= saved.longest:
        raise UserError(f"--max-length {max_length} is not between 2 and the {saved.longest} tokens that the model reads")
    ids = task.ids(rows, task.labels(rows, saved.labels, label))
    longest = max_length or saved.usual_length
    trained = read_trained(model_folder(folder))
    most = WHOLE if trained.packing else longest
    encoded = task.encode(saved.tokenizer, rows, ids, most, saved.types and len(text) == 2, ticker, data)
    if trained.packing:
        encoded = packed(encoded, longest)
    objective = task.objective(saved.labels, {split: encoded})
    counts, done = objective.counts(), 0
    masking = None
    if task.masked:
        tokenizer, part = saved.tokenizer, trained.mlm_probability or MLM_PROBABILITY
        masking = Masking(trained.seed, part, tokenizer.mask_token_id, len(tokenizer))
    for number, (output, targets) in enumerate(saved.outputs(encoded, batch_size, masking)):
        counts.add(number, output, targets)
        done += len(targets)
        ticker.tick(f"evaluating: row {done} of {len(encoded)}")
    return objective.evaluation(counts, split, step=0)


def main(argv: Sequence[str]) -> int:
    """``evaluate MODEL DATA [--text COL ...] [--label COL] ...``: prints the evaluation. Returns the exit code."""
    parser = Parser(prog="lmj evaluate", description="Evaluates a trained model on labelled rows.")
    parser.add_argument("model", type=Path, help="the model's folder, or its run's output folder")
    parser.add_argument(
        "data",
        help="a file (csv, tsv, jsonl, json, parquet), a saved dataset's folder, one of these in object storage, or a hub id",
    )
    parser.add_argument(
        "--text", nargs="+", metavar="COL", help="column of the text, or the two of a pair (those that it was trained on)"
    )
    parser.add_argument("--label", metavar="COL", help="column of the label (the one that it was trained on)")
    parser.add_argument("--split", default="test", help="split of a folder or hub dataset (test)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="rows at a time (32)")
    parser.add_argument(
        "--max-length", type=int, metavar="N", help="tokens of a row; longer ones are cut, or packed (as in training)"
    )
    parser.add_argument("-o", dest="output", choices=["text", "json"], default="text", help="form of the output")
    try:
        arguments: argparse.Namespace = parser.parse_args(argv)
        if len(arguments.text or ()) > 2:
            raise UserError(f"--text names {len(arguments.text)} columns: give one, or the two of a pair")
        if arguments.batch_size < 1:
            raise UserError(f"--batch-size {arguments.batch_size} is not 1 or more")
        ticker = Ticker(lambda line: print(line, file=sys.stderr))
        folder = model_folder(arguments.model)
        trained = read_trained(folder)
        with borrowed(arguments.data, "DATA", ticker.say) as data:
            if trained.python is not None:
                result = _of_own(folder, trained.python, data, arguments, ticker)
            else:
                text, label = arguments.text or trained.text, arguments.label or trained.label
                split, batch_size, longest = arguments.split, arguments.batch_size, arguments.max_length
                result = evaluate(folder, data, text, label, split, batch_size, longest, ticker)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    print(result.to_json() if arguments.output == "json" else as_text(result))
    return 0


def _of_own(folder: Path, python: str, data: str, arguments: argparse.Namespace, ticker: Ticker) -> Evaluation:
    """Of a model of the user's class, which gets whole rows."""
    for option, value in (("--text", arguments.text), ("--label", arguments.label), ("--max-length", arguments.max_length)):
        if value is not None:
            raise UserError(f"{option}: {python} gets whole rows: leave it out")
    from lmj_trainer.own.evaluate import evaluate_own

    return evaluate_own(folder, python, data, arguments.split, arguments.batch_size, ticker)


def as_text(result: Evaluation) -> str:
    """The evaluation for people, with the confusion matrix as a table."""
    samples = f"{result.samples} samples: {result.scores_text}"
    if not result.labels:
        return samples
    width = max(len(label) for label in result.labels + [str(n) for row in result.confusion for n in row]) + 2
    corner = "true, predicted:"
    side = max(len(label) for label in [corner, *result.labels])
    lines = [
        samples,
        f"{corner:<{side}}" + "".join(f"{label:>{width}}" for label in result.labels),
    ]
    for label, row in zip(result.labels, result.confusion, strict=True):
        lines.append(f"{label:<{side}}" + "".join(f"{cell:>{width}}" for cell in row))
    return "\n".join(lines)
