"""Where a file of rows is broken: looked for only when its reader has failed, to name the line and what to do."""

import csv
from collections.abc import Sequence
from pathlib import Path

from lmj_trainer.errors import UserError

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def not_utf8(path: Path) -> str | None:
    """What is wrong where the file stops being UTF-8; None: it is UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                return f"{path} is UTF-16: save it as UTF-8 (iconv -f UTF-16 -t UTF-8 OLD > NEW)"
            try:
                line.decode()
            except UnicodeDecodeError as error:
                found = line[error.start : error.start + 1]
                meant = found.decode("cp1252", "ignore")
                guess = f" (in Windows-1252 it is {meant!r}; iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW)" if meant else ""
                return f"{path}, line {number}: the byte 0x{found.hex()} is not UTF-8: save the file as UTF-8{guess}"
    return None


def ragged(path: Path, delimiter: str | None) -> str | None:
    """The first record that has more or fewer fields than the header; None: there is none, or it is no table (no ``delimiter``)."""
    if delimiter is None:
        return None
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        row, begin = 0, 1
        try:
            columns = len(next(reader, []))
            while True:
                begin = reader.line_num + 1
                record = next(reader)
                if not record:
                    continue
                row += 1
                if len(record) == columns:
                    continue
                open_quote = "\n" in record[-1] and next(reader, None) is None
                why = "a quote that begins there is never closed" if open_quote else _advice(len(record) > columns, delimiter)
                fields = "1 field" if len(record) == 1 else f"{len(record)} fields"
                return f"row {row} of {path} (line {begin}) has {fields}, the header has {columns}: {why}"
        except StopIteration:
            return None
        except csv.Error as error:
            return f"{path}, line {begin}: {error}"


def _advice(more: bool, delimiter: str) -> str:
    if delimiter == "\t":
        return "a text with a tab needs quotes" if more else "a tab is missing"
    return "a text with a comma needs quotes" if more else "a comma is missing"


def require_separator(columns: Sequence[str], path: Path) -> None:
    """UserError: the header is one field that other separators would make several of."""
    if len(columns) != 1:
        return
    for separator, name in _SEPARATORS.items():
        if separator in columns[0]:
            right = ".tsv is for tabs" if separator == "\t" else "save it with commas, or with tabs as .tsv"
            raise UserError(f"the columns of {path} are separated by {name}, not by what {path.suffix} stands for: {right}")
