"""``init DATA``: a job's file for a file of rows, with what was found in it and a word on what to change."""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from lmj_trainer.cli import Parser
from lmj_trainer.data.files import read_rows
from lmj_trainer.data.labels import labels_of
from lmj_trainer.data.look import first_rows, guess, length_of, others_of
from lmj_trainer.data.texts import check_texts
from lmj_trainer.errors import UserError
from lmj_trainer.wording import listed

_SHOWN = 50
"""More labels than that are not written out."""
_ENOUGH = 20
"""Fewer rows are not parted."""
_WORD = re.compile(r"(\.\.?/)*[A-Za-z][\w./-]*", re.ASCII)
_NO_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that YAML takes for something else."""


def write_job(
    data: Path, target: Path, name: str, model: str | None, text: Sequence[str], label: str | None
) -> tuple[str, list[str]]:
    """The job's file, as text, for the rows in ``data`` and a file at ``target``; and what was found. UserError: the data is of no use."""
    columns = first_rows(data)
    found = guess(columns, text, label, str(data))
    notes: list[str] = []
    rows = read_rows(data, found.text, found.label)
    check_texts(rows, notes.append)
    names = labels_of(rows, None, found.label).names
    others = {part: path for part, path in others_of(data).items() if {*found.text, found.label} <= first_rows(path).keys()}
    facts = [
        f"{len(rows)} rows, text: {listed(found.text)}, label: {found.label} ({len(names)}: {listed(names, 8)})",
        *(f"{part}: {path}" for part, path in others.items()),
        *notes,
    ]
    folder = target.absolute().parent
    parts = {part: _relative(path, folder) for part, path in others.items()}
    length = length_of([columns[column] for column in found.text])
    body = _job(name, _relative(data, folder), found.text, found.label, names, parts, len(rows), length, model)
    return body, facts


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.absolute(), folder)).as_posix()


def _job(
    name: str,
    source: str,
    text: Sequence[str],
    label: str,
    names: Sequence[str],
    others: dict[str, str],
    rows: int,
    length: int,
    model: str | None,
) -> str:
    parted = rows >= _ENOUGH
    splits = [
        f"{part}: {_scalar(others[part])}" if part in others else f"{part}Fraction: 0.1"
        for part in ("validation", "test")
        if part in others or parted
    ]
    train = int(rows * (1 - 0.1 * sum("Fraction" in split for split in splits)))
    batch = next(size for size in (32, 16, 8, 4, 2, 1) if size * 4 <= train or size == 1)
    lines = [
        "# lmj validate FILE checks it, lmj run FILE trains it, lmj explain training.batchSize tells what a field means.",
        "# Relative paths are relative to this file.",
        "apiVersion: lmj.dev/v1alpha1",
        "kind: LiveMigrationJob",
        "metadata:",
        f"  name: {_scalar(name)}",
        "spec:",
        "  pipeline:",
        "    stages: 2              # processes that share the model's layers",
        f"    microBatches: {min(4, batch):<9}# parts of a batch that are under way at once; batchSize is a multiple of it",
        "  model:",
        *(_SCRATCH if model is None else [f"    source: {_scalar(model)}"]),
        *([f"    labels: [{', '.join(map(_scalar, names))}]"] if len(names) <= _SHOWN else []),
        "  dataset:",
        f"    source: {_scalar(source)}",
        f"    text: [{', '.join(map(_scalar, text))}]{'' if len(text) > 1 else '  # two columns make a pair'}",
        f"    label: {_scalar(label)}",
        *([f"    splits: {{{', '.join(splits)}}}"] if splits else []),
        f"    maxLength: {length:<12}# tokens; longer texts are cut (nearly all of yours are shorter)",
        "  training:",
        f"    epochs: {3 if model is not None else 10}",
        f"    batchSize: {batch}",
        f"    learningRate: {'5.0e-5' if model is not None else '5.0e-4'}   # a model that knows something already wants less",
        "    warmupRatio: 0.1",
        "  output:",
        f"    path: {_scalar(f'runs/{name}')}",
        *(
            ["    weights: Best          # of the epoch with the best validation accuracy"]
            if parted or "validation" in others
            else []
        ),
    ]
    return "\n".join(lines) + "\n"


_SCRATCH = [
    "    # A small model from random weights: quick, and it needs no network. A pretrained one is better where it may be downloaded, or",
    "    # is in a folder that save_pretrained wrote: then write, instead of scratch,",
    "    # source: bert-base-uncased",
    "    scratch: {layers: 4, hiddenSize: 128, heads: 4, intermediateSize: 512, vocabulary: 8000, maxPositions: 512}",
]


def _scalar(text: str) -> str:
    """``text`` as YAML reads it back: plain where that is safe, else as a JSON string without what YAML takes for a line's end."""
    if _WORD.fullmatch(text) and text.lower() not in _NO_WORDS:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def main(argv: Sequence[str]) -> int:
    """``init DATA [-o FILE] ...``: writes the job's file. Returns the exit code. Raises UserError."""
    parser = Parser(
        prog="lmj init", description="Writes a job's file for a file of labelled texts, to be looked through and run."
    )
    parser.add_argument("data", type=Path, help="a file of rows (csv, tsv, jsonl, json, parquet)")
    parser.add_argument(
        "-o", dest="target", type=Path, metavar="FILE", help="the file to write (NAME.yaml); - for standard output"
    )
    parser.add_argument("--name", help="name of the job (of the data's file)")
    parser.add_argument(
        "--model", metavar="SOURCE", help="a pretrained model: hub id or folder (a small one from random weights)"
    )
    parser.add_argument("--text", nargs="+", default=[], metavar="COL", help="column of the text, or the two of a pair (guessed)")
    parser.add_argument("--label", metavar="COL", help="column of the label (guessed)")
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")
    arguments: argparse.Namespace = parser.parse_args(argv)
    if len(arguments.text) > 2:
        raise UserError(f"--text names {len(arguments.text)} columns: give one, or the two of a pair")
    name = arguments.name or re.sub(r"[^a-z0-9]+", "-", arguments.data.stem.lower()).strip("-")[:40].strip("-") or "job"
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", name):
        raise UserError(f"--name {name}: lower-case letters, digits and '-', 40 at most")
    target: Path = arguments.target or Path(f"{name}.yaml")
    printed = str(target) == "-"
    if not printed and target.exists() and not arguments.force:
        raise UserError(f"{target} is there already: name another file with -o, or replace it with --force")
    here = Path("-") if printed else target
    model: str | None = arguments.model
    if model is not None and Path(model).is_dir():
        model = _relative(Path(model), here.absolute().parent)
    body, facts = write_job(arguments.data, here, name, model, arguments.text, arguments.label)
    if printed:
        sys.stdout.write(body)
        return 0
    try:
        target.write_text(body, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from error
    for fact in facts:
        print(fact)
    print(f"{target}: written; look it through, then: lmj run {target}")
    return 0
