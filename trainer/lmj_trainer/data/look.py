"""What a file of rows holds, guessed from its beginning: which column is the text, and which the label."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lmj_trainer.data.broken import not_utf8, require_separator
from lmj_trainer.data.files import SUFFIXES, is_file_name, json_records, require_file
from lmj_trainer.data.rows import require_columns
from lmj_trainer.errors import UserError
from lmj_trainer.wording import listed, one_line

_SAMPLE = 2000
"""Rows that are looked at."""
_MOST_LABELS = 100
_PAIRS = (
    ("premise", "hypothesis"),
    ("question", "answer"),
    ("question1", "question2"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("query", "passage"),
)
_LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "topic", "is_duplicate", "y")

Columns = Mapping[str, Sequence[Any]]
"""Columns and the values of their first rows."""


@dataclass(frozen=True)
class Guess:
    """The columns to train on."""

    text: tuple[str, ...]
    label: str


def first_rows(path: Path) -> Columns:
    """The columns of the file at ``path`` with the values of its first rows. UserError: it cannot be read, or is empty."""
    if not is_file_name(str(path)):
        raise UserError(f"{path}: a file of rows is needed, which ends in {', '.join(SUFFIXES)}")
    require_file(path)
    suffix = path.suffix.lower()
    try:
        columns = _table(path, "\t" if suffix == ".tsv" else ",") if suffix in (".csv", ".tsv") else _records(path, suffix)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        known = None if suffix == ".parquet" else not_utf8(path)
        raise UserError(known or f"{path} cannot be read: {one_line(error)}") from error
    if not any(columns.values()):
        raise UserError(f"{path} has no rows")
    return columns


def _table(path: Path, delimiter: str) -> Columns:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        names = next(reader, [])
        require_separator(names, path)
        rows = [row for row in islice(reader, _SAMPLE) if len(row) == len(names)]
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _records(path: Path, suffix: str) -> Columns:
    if suffix == ".parquet":
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            batch = next(file.iter_batches(_SAMPLE), None)
            return {} if batch is None else dict(batch.to_pydict())
    if suffix == ".jsonl":
        with path.open(encoding="utf-8-sig") as lines:
            records = [json.loads(line) for line in islice((line for line in lines if line.strip()), _SAMPLE)]
    else:
        records = json_records(path)[:_SAMPLE]
    if not all(isinstance(record, dict) for record in records):
        raise UserError(f"{path}: each row has to be an object with columns")
    names = list(dict.fromkeys(name for record in records for name in record))
    return {name: [record.get(name) for record in records] for name in names}


def guess(columns: Columns, text: Sequence[str], label: str | None, origin: str) -> Guess:
    """``text`` and ``label`` where they are given, else the columns that look like it. UserError: none does."""
    require_columns([*text, *([label] if label is not None else [])], list(columns), origin)
    chosen = label or _label(columns, text, origin)
    return Guess(tuple(text) or _text(columns, chosen, origin), chosen)


def _label(columns: Columns, text: Sequence[str], origin: str) -> str:
    for known in _LABELS:
        for name in columns:
            if name.lower() == known and name not in text:
                return name
    few = {}
    for name, values in columns.items():
        different = {str(value) for value in values if value not in (None, "")}
        if name not in text and 2 <= len(different) <= min(_MOST_LABELS, max(2, len(values) // 2)):
            few[name] = len(different)
    # Of others, words of few kinds; a number may as well be a quantity.
    best = min(few, key=lambda name: (_numeric(columns[name]), few[name]), default=None)
    if best is None:
        raise UserError(f"no column of {origin} looks like a label: name it with --label (columns: {listed(list(columns))})")
    return best


def _text(columns: Columns, label: str, origin: str) -> tuple[str, ...]:
    texts = {
        name: sum(len(value) for value in values if isinstance(value, str)) / len(values)
        for name, values in columns.items()
        if name != label and values and any(values) and all(isinstance(v, str | None) for v in values) and not _numeric(values)
    }
    lower = {name.lower(): name for name in texts}
    for pair in _PAIRS:
        if all(name in lower for name in pair):
            return tuple(lower[name] for name in pair)
    best = max(texts, key=texts.__getitem__, default=None)
    if best is None:
        raise UserError(f"no column of {origin} looks like a text: name it with --text (columns: {listed(list(columns))})")
    return (best,)


def _numeric(values: Sequence[Any]) -> bool:
    def number(value: Any) -> bool:
        try:
            float(value)
        except (TypeError, ValueError):
            return False
        return True

    return all(number(value) for value in values if value not in (None, ""))


def length_of(texts: Sequence[Sequence[Any]]) -> int:
    """Tokens that hold nearly all of the texts (columns of them): a word is some 1.4 pieces, and a pair has 3 special ones."""
    words = sorted(sum(len(str(text or "").split()) for text in row) for row in zip(*texts, strict=True))
    enough = words[min(len(words) - 1, len(words) * 95 // 100)]
    return min(512, max(32, -(-(int(enough * 1.4) + 3) // 32) * 32))


def others_of(path: Path) -> dict[str, Path]:
    """Files beside ``path`` that are its validation and test parts by their names: ``test.csv``, ``reviews-test.csv``."""
    found: dict[str, Path] = {}
    for part, words in (("validation", ("validation", "valid", "val", "dev")), ("test", ("test",))):
        for word in words:
            stems = [f"{path.stem}-{word}", f"{path.stem}_{word}", f"{path.stem}.{word}"]
            if "train" in path.stem:
                stems.append(path.stem.replace("train", word))
            there = [path.with_name(stem + path.suffix) for stem in stems if path.with_name(stem + path.suffix).is_file()]
            if there:
                found.setdefault(part, there[0])
    return found
