"""Writes ``reviews.csv`` as Parquet files with small row groups, for ``streaming.yaml``: every tenth row is one to validate on.

They are written into ``examples/runs/parquet``, and are not shipped: ``python examples/data/make_parquet.py``.
"""

import csv
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

DATA = Path(__file__).parent
FILES = 4
ROWS_OF_A_GROUP = 200


def main(folder: Path = DATA.parent / "runs" / "parquet") -> None:
    """Writes the files into ``folder``: ``train/part-0.parquet`` and others, and ``validation.parquet``."""
    with (DATA / "reviews.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    train = [row for number, row in enumerate(rows) if number % 10]
    (folder / "train").mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        _write(train[number::FILES], folder / "train" / f"part-{number}.parquet")
    _write(rows[::10], folder / "validation.parquet")


def _write(rows: list[dict[str, str]], path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=ROWS_OF_A_GROUP)


if __name__ == "__main__":
    main()
