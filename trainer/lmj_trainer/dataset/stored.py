"""The files of a prepared dataset: arrays, or a table of whole rows, for each split, and what they mean."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmj_trainer.data.numbered import NumberedRows
from lmj_trainer.data.rows import Rows
from lmj_trainer.data.split import Split
from lmj_trainer.data.table import Table
from lmj_trainer.errors import UserError
from lmj_trainer.streaming.index import Index

FORMAT = 1
_META = "meta.json"
_TABLE = ".rows.arrow"
_INDEX, _SAMPLE = "index.json", "sample"
_BESIDE = "beside-"
"""What the names of a split's further arrays begin with."""


@dataclass(frozen=True, eq=False)
class Streamed:
    """What is known of training rows that are read while the job trains."""

    index: Index
    """Where they are."""
    by_number: bool
    """Their label column has ids, not names."""
    sample: Split
    """Some of them, tokenized: what a step is rehearsed with."""


@dataclass(frozen=True, eq=False)
class PreparedDataset:
    """A tokenized dataset."""

    digest: str
    """Of everything that it depends on, hex."""
    labels: tuple[str, ...]
    """Names of the labels in the order of their ids."""
    pad_id: int
    """Token that fills rows up."""
    vocab_size: int
    """Tokens that the tokenizer knows."""
    tokenizer: Path
    """Folder of the tokenizer, as ``save_pretrained`` wrote it."""
    splits: Mapping[str, Split]
    """``train``, and ``validation`` and ``test`` where there are any."""
    mask_id: int | None = None
    """Token that stands for a hidden one; None: the tokenizer has none, or nobody asked."""
    streamed: Streamed | None = None
    """Of training rows that are read while the job trains, which are in no split then; None: they are a split."""

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each split has, and ``train``."""
        train = {} if self.streamed is None else {"train": self.streamed.index.rows}
        return train | {name: len(split) for name, split in self.splits.items()}


@dataclass(frozen=True, eq=False)
class PreparedRows:
    """The dataset of a job whose class takes the rows as they are (``model.python``)."""

    digest: str
    """Of everything that it depends on, hex."""
    splits: Mapping[str, Table | NumberedRows]
    """``train``, and ``validation`` and ``test`` where there are any."""
    labels: tuple[str, ...] = ()
    vocab_size: int = 0

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each split has."""
        return {name: len(table) for name, table in self.splits.items()}


Prepared = PreparedDataset | PreparedRows


def load(folder: Path) -> Prepared:
    """Maps what is in ``folder``. UserError: it is damaged."""
    try:
        meta = read_meta(folder)
        if "tables" in meta:
            tables = {name: Table.open(folder / f"{name}{_TABLE}") for name in meta["tables"]}
            return PreparedRows(folder.name, tables)
        splits = {name: _map(folder, name, rows, meta["maxLength"]) for name, rows in meta["splits"].items()}
        return PreparedDataset(
            folder.name,
            tuple(meta["labels"]),
            meta["padId"],
            meta["vocabSize"],
            folder / "tokenizer",
            splits,
            meta.get("maskId"),
            _streamed(folder, meta),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"the prepared dataset in {folder} is damaged ({error}): remove that folder, it is made again") from error


def read_meta(folder: Path) -> dict[str, Any]:
    """What the dataset in ``folder`` says of itself. Raises OSError, ValueError."""
    return json.loads((folder / _META).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def write_meta(site: Path, meta: Mapping[str, Any]) -> None:
    """Leave in ``site`` what its dataset says of itself."""
    text = json.dumps({"format": FORMAT, **meta}, indent=2, ensure_ascii=False)
    (site / _META).write_text(text + "\n", encoding="utf-8")


def write_table(site: Path, name: str, rows: Rows) -> None:
    """Split ``name`` of whole rows."""
    Table.of(rows).write(site / f"{name}{_TABLE}")


def write_split(site: Path, name: str, split: Split) -> None:
    """Split ``name`` of tokens."""
    for field, array in _arrays(split).items():
        with (site / f"{name}.{field}.npy").open("wb") as file:
            np.save(file, array, allow_pickle=False)


def write_streamed(site: Path, index: Index, sample: Split) -> None:
    """What is known of rows that are read while the job trains."""
    (site / _INDEX).write_bytes(index.to_json())
    write_split(site, _SAMPLE, sample)


def _streamed(folder: Path, meta: Mapping[str, Any]) -> Streamed | None:
    if "sample" not in meta:
        return None
    index = Index.from_json((folder / _INDEX).read_bytes())
    return Streamed(index, meta["byNumber"], _map(folder, _SAMPLE, meta["sample"], meta["maxLength"]))


def _arrays(split: Split) -> dict[str, np.ndarray[Any, Any]]:
    arrays: dict[str, np.ndarray[Any, Any]] = {"input_ids": split.input_ids, "offsets": split.offsets, "labels": split.labels}
    arrays |= {f"{_BESIDE}{name}": array for name, array in split.beside.items()}
    return arrays if split.token_type_ids is None else {**arrays, "token_type_ids": split.token_type_ids}


def _map(folder: Path, name: str, rows: int, max_length: int) -> Split:
    def mapped(field: str) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = np.load(folder / f"{name}.{field}.npy", mmap_mode="r", allow_pickle=False)
        return array

    types = mapped("token_type_ids") if (folder / f"{name}.token_type_ids.npy").is_file() else None
    there = [path.name.removeprefix(f"{name}.").removesuffix(".npy") for path in folder.glob(f"{name}.{_BESIDE}*.npy")]
    beside = {field.removeprefix(_BESIDE): mapped(field) for field in sorted(there)}
    split = Split(mapped("input_ids"), types, mapped("offsets"), mapped("labels"), max_length, beside)
    if len(split) != rows:
        raise ValueError(f"{name} has {len(split)} rows instead of {rows}")
    return split
