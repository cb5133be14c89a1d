"""The dataset of a job, tokenized once: arrays on disk that every rank maps.

A folder of the cache is named by the digest of everything that its content depends on. It is built aside and renamed into place,
so it is whole or not there; several ranks may do so at the same time, the first wins and the others take what it made.
"""

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lmj_api.layout import Layout
from lmj_api.spec import JobSpec
from lmj_trainer.data.packing import WHOLE, packed
from lmj_trainer.data.source import DataSource, Say
from lmj_trainer.data.ticker import Ticker
from lmj_trainer.data.tokens import make_tokenizer, reads_types, save_tokenizer, tokenizer_key
from lmj_trainer.dataset.cached import build_into
from lmj_trainer.dataset.pin import Pin, at_commit
from lmj_trainer.dataset.selection import select, select_rows, selection_key
from lmj_trainer.dataset.stored import FORMAT, Prepared, PreparedRows, load, read_meta, write_meta, write_split, write_table
from lmj_trainer.dataset.streamed import prepare_streamed, streamed_at_hand
from lmj_trainer.hub import is_commit, patiently
from lmj_trainer.once import once
from lmj_trainer.task.registry import TASKS

_COMMIT = "commit"


def prepare(spec: JobSpec, cache: Path, say: Say, pin: Pin | None = None) -> Any:
    """The dataset of ``spec``, :data:`Prepared`, from ``cache`` or built into it. UserError: anything wrong with the data or the tokenizer.

    ``say`` gets a line now and then when it takes longer than two seconds. ``pin``: keeps the commit that a hub's rows are of; None:
    they are those that there are now.
    """
    if DataSource.of(spec).kind == "script":
        return _of_script(spec)
    if spec.dataset.streaming is not None:
        return prepare_streamed(spec, cache, say)
    digest = prepared_digest(spec)
    folder = cache / digest
    there = folder.is_dir()
    if not there:
        build_into(cache, digest, lambda site: _build_at(spec, site, say, pin))
    prepared = load(folder)
    if there and pin is not None and (commit := read_meta(folder).get(_COMMIT)) is not None and pin.commit() is None:
        pin.keep_if_possible(commit, say)  # whoever prepared them could not, or what a run keeps was moved aside
    return prepared


def _of_script(spec: JobSpec) -> PreparedRows:
    """The script has them: nothing is written."""
    from lmj_trainer.own.source import load_own

    return PreparedRows("script", load_own(spec.model).task.splits())


def prepare_patiently(spec: JobSpec, say: Say, who: str | None = None) -> Any:
    """As :func:`prepare`, in the job's output folder; a hub that does not answer is waited for as a model's is.

    Of several ranks one prepares what is a hub's, and the others wait for it. ``who``: this process, see :func:`once`.
    """
    cache, pin, seconds = Layout.of(spec).cache, Pin.of(spec), 0.8 * spec.recovery.start_timeout_seconds
    if spec.dataset.streaming is not None:
        return prepare_streamed(spec, cache, say, who, seconds)

    def prepared(say: Say) -> Any:
        return patiently(lambda: prepare(spec, cache, say, pin), seconds, say)

    found, source = [], DataSource.of(spec)
    if source.kind == "hub" and not (folder := cache / prepared_digest(spec)).is_dir():
        once(folder, lambda tell: found.append(prepared(tell)), f"the dataset {source.name}", say, seconds, who)
    return found[0] if found else prepared(say)


def at_hand(spec: JobSpec, cache: Path) -> Prepared | None:
    """The dataset of ``spec``, if ``cache`` has it. UserError: it is damaged, or what it is made of is gone."""
    if spec.dataset.streaming is not None:
        return streamed_at_hand(spec, cache)
    folder = cache / prepared_digest(spec) if cache.is_dir() else None
    return load(folder) if folder is not None and folder.is_dir() else None


def prepared_digest(spec: JobSpec) -> str:
    """The name of the dataset of ``spec`` in the cache."""
    from xxhash import xxh3_128

    return xxh3_128(json.dumps(prepared_key(spec), sort_keys=True).encode()).hexdigest()


def prepared_key(spec: JobSpec) -> dict[str, object]:
    """Everything that the dataset of ``spec`` depends on, as JSON."""
    key: dict[str, object] = {
        "format": FORMAT,
        "selection": selection_key(spec.dataset, spec.training.seed, spec.model.labels),
    }
    if spec.model.python is not None:
        return key | {"rows": "as they are"}
    return key | {
        "tokenizer": tokenizer_key(spec),
        "tokenizers": version("tokenizers"),
        "maxLength": spec.dataset.max_length,
        **TASKS[spec.model.task].key,
        # Not true, as it was while a text was cut before it was packed: rows of then are others.
        **({"packing": "whole texts"} if spec.dataset.packing else {}),
    }


def _build_at(spec: JobSpec, site: Path, say: Say, pin: Pin | None) -> None:
    """Build the rows of ``spec`` into ``site``; a hub's at the commit that ``pin`` keeps, or else at that of now, which it then keeps."""
    build = _build if spec.model.python is None else _build_rows
    source = DataSource.of(spec)
    commit = None if pin is None else pin.commit() or source.commit()
    if pin is None or commit is None:
        build(spec, site, say)
        return
    say(f"reading {source.name} at commit {commit}")
    build(at_commit(spec, commit), site, say)
    # Rows that nobody can be trained on pin nothing: what is wrong with them may be mended there.
    kept = pin.keep_if_possible(commit, say)
    if kept != commit:
        # Another rank found another commit, and was faster.
        for path in site.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        build(at_commit(spec, kept), site, say)


def _build(spec: JobSpec, site: Path, say: Say) -> None:
    selection = select(spec, say)
    ticker = Ticker(say)
    tokenizer = make_tokenizer(spec, selection.splits["train"].rows, ticker)
    types, task = reads_types(spec), TASKS[spec.model.task]
    rows: dict[str, int] = {}
    for name, part in selection.splits.items():
        most = spec.dataset.max_length
        split = task.encode(tokenizer, part.rows, part.ids, WHOLE if spec.dataset.packing else most, types, ticker, name)
        if spec.dataset.packing:
            split = packed(split, most)
        rows[name] = len(split)
        write_split(site, name, split)
    save_tokenizer(tokenizer, site / "tokenizer")
    meta = {
        "labels": list(selection.labels.names),
        "padId": int(tokenizer.pad_token_id),
        "vocabSize": len(tokenizer),
        "maskId": tokenizer.mask_token_id,
        "maxLength": spec.dataset.max_length,
        "splits": rows,
        **_commit_of(spec),
    }
    write_meta(site, meta)


def _build_rows(spec: JobSpec, site: Path, say: Say) -> None:
    parts = select_rows(spec, say)
    for name, rows in parts.items():
        write_table(site, name, rows)
    write_meta(site, {"tables": list(parts), **_commit_of(spec)})


def _commit_of(spec: JobSpec) -> dict[str, str]:
    """What ``_META`` says of where the rows are from. Only what a hub has is of a commit."""
    revision = spec.dataset.revision
    return {_COMMIT: revision} if revision is not None and is_commit(revision) else {}
