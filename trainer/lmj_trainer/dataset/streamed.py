"""The dataset of a job whose training rows are read while it trains: all but these rows, of which the first ones are tried."""

import json
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from lmj_api.spec import JobSpec
from lmj_trainer.data.labels import Labels
from lmj_trainer.data.rows import Rows
from lmj_trainer.data.source import DataSource, Say
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.data.tokens import load_tokenizer, save_tokenizer, tokenizer_key
from lmj_trainer.dataset.cached import build_into
from lmj_trainer.dataset.encoder import Encoder
from lmj_trainer.dataset.selection import named, others_key, require_labels
from lmj_trainer.dataset.stored import FORMAT, PreparedDataset, load, write_meta, write_split, write_streamed
from lmj_trainer.hub import patiently
from lmj_trainer.store.registry import open_place
from lmj_trainer.streaming.files import Files
from lmj_trainer.streaming.index import Index, window_bytes
from lmj_trainer.streaming.pin import index_of, kept_index
from lmj_trainer.streaming.rows import rows_of
from lmj_trainer.streaming.source import FIELD, Open, Source, asking
from lmj_trainer.streaming.survey import survey
from lmj_trainer.task.registry import TASKS

_TRIED = 1000
"""Training rows that are tokenized before training begins: enough to know that the columns, the labels and the tokenizer are right."""
_SAMPLE = 64
"""Of these, those that are kept to rehearse a step with."""


@dataclass(frozen=True, eq=False)
class _Looked:
    """What the job's files come to."""

    labels: Labels
    first: Rows
    """The first training rows."""
    others: dict[str, Rows]
    """Those of other splits."""

    @property
    def rows(self) -> dict[str, int]:
        """How many each of the other splits has."""
        return {name: len(rows) for name, rows in self.others.items()}


def prepare_streamed(
    spec: JobSpec, cache: Path, say: Say, who: str | None = None, patience: float = 0.0, open_: Open = open_place
) -> PreparedDataset:
    """The dataset of ``spec``, from ``cache`` or built into it, with the index that the run keeps. ``who``, ``patience``: as of
    :func:`index_of`.

    UserError: anything wrong with the data or the tokenizer. OutageError: storage does not answer.
    """
    index = index_of(spec, say, who, patience, open_)
    digest = streamed_digest(spec, index)
    if not (folder := cache / digest).is_dir():

        def build(site: Path) -> None:
            looked = patiently(partial(_look, spec, index, say, open_), patience, say)
            _build(spec, index, looked, site, say)

        build_into(cache, digest, build)
    return load(folder)  # type: ignore[return-value]  # of tokens, as it was built


def streamed_at_hand(spec: JobSpec, cache: Path) -> PreparedDataset | None:
    """The dataset of ``spec``, if ``cache`` has it. Asks nobody. UserError: it is damaged."""
    index = kept_index(spec)
    folder = cache / streamed_digest(spec, index) if index is not None else None
    return load(folder) if folder is not None and folder.is_dir() else None  # type: ignore[return-value]  # as above


def check_streamed(spec: JobSpec, say: Say, open_: Open = open_place) -> tuple[tuple[str, ...], dict[str, int]]:
    """The labels of ``spec``, and how many rows each split has. Keeps nothing. Raises as :func:`prepare_streamed`."""
    index = kept_index(spec) or survey(spec, Source.open(spec.dataset.source, open_), say)
    assert spec.dataset.streaming is not None
    index.require_room(spec.dataset.streaming)
    looked = _look(spec, index, say, open_)
    return looked.labels.names, {"train": index.rows, **looked.rows}


def streamed_digest(spec: JobSpec, index: Index) -> str:
    """The name of the dataset of ``spec`` in the cache: of everything that it depends on."""
    from xxhash import xxh3_128

    key: dict[str, object] = {
        "format": FORMAT,
        "stream": index.digest,
        "selection": others_key(spec.dataset, spec.training.seed, spec.model.labels),
        "tokenizer": tokenizer_key(spec),
        "tokenizers": version("tokenizers"),
        "maxLength": spec.dataset.max_length,
        **TASKS[spec.model.task].key,
    }
    return xxh3_128(json.dumps(key, sort_keys=True).encode()).hexdigest()


def _look(spec: JobSpec, index: Index, say: Say, open_: Open) -> _Looked:
    """Read the first row group, and the other splits, and check them. Raises as :func:`prepare_streamed`."""
    dataset, task = spec.dataset, TASKS[spec.model.task]
    assert dataset.streaming is not None
    files = Files(Source.open(dataset.source, open_), index, dataset.columns, dataset.label)
    file, group = index.groups[0]
    called = files.called(file)
    say(f"reading the first rows of {called}")
    with asking(FIELD, called):
        table = files.read(file, group, window_bytes(dataset.streaming))
    first = rows_of(index, 0, called, table, dataset.columns, dataset.label, np.arange(len(table), dtype=np.int64))
    told = replace(first, origin=f"the first row group of {called}")  # not of all rows, as of other jobs
    labels = task.labels(told, spec.model.labels, dataset.label)
    first = first.take(np.arange(min(_TRIED, len(first)), dtype=np.int64))
    others = named(spec, DataSource.of(spec), say)
    task.check(first, say)
    task.ids(first, labels)
    for part, rows in others.items():
        task.check(rows, say)
        require_labels(rows, task.ids(rows, labels), part)
    return _Looked(labels, first, others)


def _build(spec: JobSpec, index: Index, looked: _Looked, site: Path, say: Say) -> None:
    tokenizer, ticker = load_tokenizer(str(spec.model.source), spec.model.revision), Ticker(say)
    encoder = Encoder.of(spec, tokenizer, looked.labels)
    encoder.encode(looked.first, ticker, "the first rows")
    sample = encoder.encode(looked.first.take(np.arange(min(_SAMPLE, len(looked.first)), dtype=np.int64)), ticker, "a sample")
    write_streamed(site, index, sample)
    for name, rows in looked.others.items():
        write_split(site, name, encoder.encode(rows, ticker, name))
    save_tokenizer(tokenizer, site / "tokenizer")
    meta = {
        "labels": list(looked.labels.names),
        "byNumber": looked.labels.by_number,
        "padId": int(tokenizer.pad_token_id),
        "vocabSize": len(tokenizer),
        "maskId": tokenizer.mask_token_id,
        "maxLength": spec.dataset.max_length,
        "splits": looked.rows,
        "sample": len(sample),
    }
    write_meta(site, meta)
