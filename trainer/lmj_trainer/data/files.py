"""Reads one file of rows: CSV, TSV, JSON lines, JSON or Parquet.

pyarrow's own readers and the json module, not ``datasets``: they start in half a second instead of three, leave texts such as
``NA`` and ``2020-01-01`` what they are, and name the row of what they cannot read.
"""

import csv as csv_module
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmj_api.nearest import did_you_mean
from lmj_trainer.data.broken import not_utf8, ragged, require_separator
from lmj_trainer.data.messages import column, is_conversation, is_kind
from lmj_trainer.data.rows import Rows, columns, require_columns
from lmj_trainer.errors import UserError
from lmj_trainer.wording import listed, one_line

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
"""Endings of the files that are read."""

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LARGEST_RECORD = 1 << 26
"""Bytes that the CSV reader looks at at a time; no record may be larger."""


def is_file_name(name: str) -> bool:
    """Whether ``name`` has the ending of a file that is read here."""
    return Path(name).suffix.lower() in SUFFIXES


def require_file(path: Path) -> None:
    """Raises UserError when there is no file at ``path``: the nearest one beside it."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a {path.suffix} file")
    if not path.is_file():
        near = did_you_mean(path.name, sorted(p.name for p in path.parent.iterdir())) if path.parent.is_dir() else ""
        raise UserError(f"there is no file {path}{near}")


def read_rows(path: Path, text: Sequence[str], label: str | None) -> Rows:
    """All rows of the file at ``path``, with the columns ``text``; without any, all columns as they are.

    UserError: it is missing, broken or empty, or lacks a column.
    """
    require_file(path)
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".jsonl": _read_json, ".json": _read_json, ".parquet": _read_parquet}
    try:
        rows = readers[path.suffix.lower()](path, tuple(text), label)
    except (OSError, ValueError, RecursionError, csv_module.Error) as error:  # pyarrow's errors are ValueErrors and OSErrors too
        known = (
            None if path.suffix.lower() == ".parquet" else not_utf8(path) or ragged(path, _DELIMITERS.get(path.suffix.lower()))
        )
        raise UserError(known or f"{path} cannot be read: {one_line(error)}") from error
    if len(rows) == 0:
        raise UserError(f"{path} has no rows")
    return rows


def _read_csv(path: Path, text: tuple[str, ...], label: str | None) -> Rows:
    import pyarrow as pa
    from pyarrow import csv

    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty")
    # Quoted fields may hold newlines. Every field is a string: no text is taken for a null, a date or a number.
    # One thread: errors then name the row.
    parse = csv.ParseOptions(delimiter=_DELIMITERS[path.suffix.lower()], newlines_in_values=True)
    read = csv.ReadOptions(use_threads=False, block_size=_LARGEST_RECORD)
    with path.open(encoding="utf-8-sig", newline="") as file:
        there = next(csv_module.reader(file, delimiter=parse.delimiter), [])
    text = text or tuple(there)
    wanted = columns(text, label)
    require_separator(there, path)
    require_columns(wanted, there, str(path))
    for name in wanted:
        if there.count(name) > 1:
            raise UserError(f"{path} has two columns {name!r}; rename one (columns: {listed(there)})")
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(wanted, pa.large_string()),
        include_columns=wanted,
        strings_can_be_null=False,
    )
    table = csv.read_csv(path, read_options=read, parse_options=parse, convert_options=convert)
    return Rows.of(text, [table[name] for name in text], _labels(table, label), None, str(path))


def _read_json(path: Path, text: tuple[str, ...], label: str | None) -> Rows:
    import pyarrow as pa

    records = _json_lines(path) if path.suffix.lower() == ".jsonl" else json_records(path)
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise UserError(f"row {number} of {path} is not an object with columns, but {one_line(json.dumps(record), 60)}")
    if not text:
        return whole_rows(_table(records, path), str(path))
    if records:
        there = list(dict.fromkeys(key for record in records for key in record))
        require_columns(columns(text, label), there, str(path))
    texts = []
    for name in text:
        values = [record.get(name) for record in records]
        if any(value and is_conversation(value) for value in values):
            texts.append(_conversations(path, name, values))
            continue
        words = any(_is_words(value) for value in values)
        for number, value in enumerate(values, 1):
            if value is not None and not (_is_words(value) if words else isinstance(value, str)):
                what = "a list of words, as in other rows" if words else "a text"
                raise UserError(f"row {number} of {path}: column {name!r} is not {what}, but {one_line(json.dumps(value), 60)}")
        texts.append(pa.chunked_array([pa.array(values, pa.large_list(pa.large_string()) if words else pa.large_string())]))
    labels = [None if label is None else record.get(label) for record in records]
    return Rows.of(text, texts, labels, None, str(path))


def _table(records: Sequence[dict[str, Any]], path: Path) -> Any:
    """All of ``records``, a column for each key; null where a record lacks it."""
    import pyarrow as pa

    found = {}
    for name in dict.fromkeys(key for record in records for key in record):
        try:
            found[name] = pa.array([record.get(name) for record in records])
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise UserError(f"column {name!r} of {path} holds values of different kinds: {one_line(error, 100)}") from error
    return pa.table(found)


def _conversations(path: Path, name: str, values: Sequence[Any]) -> Any:
    for number, value in enumerate(values, 1):
        if value is not None and not is_conversation(value):
            shown = one_line(json.dumps(value), 60)
            raise UserError(f"row {number} of {path}: column {name!r} is not a list of messages, as in other rows, but {shown}")
    return column(values)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _json_lines(path: Path) -> list[Any]:
    records = []
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    records.append(json.loads(line, object_pairs_hook=_once))
                except json.JSONDecodeError as error:
                    raise UserError(f"line {number} of {path} is not JSON: {one_line(error)}") from error
                except (_TwiceError, RecursionError) as error:
                    raise UserError(f"line {number} of {path}: {one_line(error)}") from error
    return records


def json_records(path: Path) -> list[Any]:
    """The rows of a JSON file: a list of objects, one in an object, or an object a line. Raises ValueError or UserError."""
    content = path.read_text(encoding="utf-8-sig")
    if not content.strip():
        raise UserError(f"{path} is empty")
    try:
        value = json.loads(content, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # one object a line, under the name .json, is common
            return _json_lines(path)
        raise
    if isinstance(value, dict):
        lists = [entry for entry in value.values() if isinstance(entry, list)]
        if len(lists) == 1:  # {"data": [...]} around the rows
            return lists[0]
        return [value]
    if not isinstance(value, list):
        raise UserError(f"{path} holds neither a list of objects nor an object a line")
    return value


class _TwiceError(ValueError):
    """An object has a key twice: which of the two is meant, nobody knows."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice in one object")
    return found


def _read_parquet(path: Path, text: tuple[str, ...], label: str | None) -> Rows:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        if not text:
            return whole_rows(file.read(), str(path))
        require_columns(columns(text, label), schema.names, str(path))
        table = file.read(columns=columns(text, label))
    return rows_of_table(table, text, label, class_names(schema.metadata, label), str(path))


def whole_rows(table: Any, origin: str) -> Rows:
    """The rows of a pyarrow table with all columns, of any type."""
    return Rows.of(table.column_names, table.columns, [None] * len(table), None, origin)


def rows_of_table(table: Any, text: Sequence[str], label: str | None, names: Sequence[str] | None, origin: str) -> Rows:
    """The rows of a pyarrow table that holds the columns."""
    import pyarrow as pa

    texts = []
    for name in text:
        type_ = table.schema.field(name).type
        if is_kind(type_):
            texts.append(column(table[name].to_pylist()))
            continue
        words = pa.types.is_list(type_) or pa.types.is_large_list(type_)
        if not _is_text(type_.value_type if words else type_):
            raise UserError(f"column {name!r} of {origin} holds {type_}, not text")
        # large: 64-bit offsets, so taking rows of more than 2 GiB of text works
        texts.append(table[name].cast(pa.large_list(pa.large_string()) if words else pa.large_string()))
    return Rows.of(text, texts, _labels(table, label), names, origin)


def _labels(table: Any, label: str | None) -> list[Any]:
    return [None] * len(table) if label is None else list(table[label].to_pylist())


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null))


def class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> list[str] | None:
    """Label names that ``datasets`` left in the file's metadata."""
    if label is None or not metadata or b"huggingface" not in metadata:
        return None
    feature: Any = json.loads(metadata[b"huggingface"])
    for name in ("info", "features", label):
        feature = feature.get(name) if isinstance(feature, dict) else None
    if isinstance(feature, dict) and isinstance(feature.get("feature"), dict):  # of each word
        feature = feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
