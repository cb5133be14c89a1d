"""Reads datasets through the ``datasets`` library: folders that ``save_to_disk`` wrote, and hub ids."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmj_api.nearest import did_you_mean
from lmj_trainer.data.files import rows_of_table, whole_rows
from lmj_trainer.data.rows import Rows, columns, require_columns
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.hub import hub_is_reachable, is_commit, is_of_the_hub, judged
from lmj_trainer.wording import listed, one_line

MARKS = ("dataset_info.json", "state.json", "dataset_dict.json")
"""Files that show that a folder was written by ``save_to_disk``."""


def open_folder(path: Path) -> Mapping[str, Any]:
    """The splits of the folder at ``path``; a single dataset is the split ``train``."""
    import datasets

    if not any((path / mark).is_file() for mark in MARKS):
        raise UserError(f"{path} is a folder that datasets' save_to_disk did not write (it holds none of {listed(MARKS)})")
    try:
        found = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    return found if isinstance(found, datasets.DatasetDict) else {"train": found}


def hub_commit(name: str, config: str | None, revision: str | None) -> str | None:
    """The commit of the hub dataset ``name`` that ``revision`` stands for now; where the hub does not answer, that of what its cache has.

    None: the cache does not say. Raises as :func:`open_hub`.
    """
    with _judging(name, config, revision) as reachable:
        found = _described(name, revision).name if reachable else _builder(name, config, revision).hash
    return str(found) if is_commit(found) else None


def open_hub(name: str, config: str | None, revision: str | None) -> Mapping[str, Any]:
    """The splits of the hub dataset ``name``. UserError: unknown, or in need of a configuration. OutageError: the hub does not answer."""
    builder = _builder(name, config, revision)
    with _judging(name, config, revision):
        builder.download_and_prepare()
        return builder.as_dataset()  # type: ignore[no-any-return]


def _builder(name: str, config: str | None, revision: str | None) -> Any:
    """Knows the commit (``hash``) and the files of the dataset. Where ``revision`` is a commit it is of that one."""
    with _judging(name, config, revision) as reachable:
        import datasets

        builder = datasets.load_dataset_builder(name, config, revision=revision)
        if not is_commit(revision) or builder.hash == revision:
            return builder
        # The hub did not give it, for whatever reason, and the library goes on with the newest that its cache has.
        if reachable:
            _described(name, revision)  # says the reason
            raise OutageError(f"no dataset {_called(name, config, revision)}: the hub did not give it")
        raise OSError(f"the hub's cache has commit {builder.hash} alone")


def _described(name: str, revision: str | None) -> Path:
    """The folder of the hub's cache with the dataset's description, which is called by the commit. Raises what the hub's client does."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=["README.md"]))


@contextmanager
def _judging(name: str, config: str | None, revision: str | None) -> Iterator[bool]:
    """Whether the hub answers; what goes wrong meanwhile becomes UserError or OutageError."""
    reachable = hub_is_reachable()
    from datasets.exceptions import DatasetsError

    try:
        with _without_torch_s_place():
            yield reachable
    except Exception as error:
        if not isinstance(error, DatasetsError) and not is_of_the_hub(error):
            raise
        raise judged(error, f"no dataset {_called(name, config, revision)}", reachable) from error


def _called(name: str, config: str | None, revision: str | None) -> str:
    return name + (f", config {config}" if config else "") + (f", revision {revision}" if revision else "")


@contextmanager
def _without_torch_s_place() -> Iterator[None]:
    """Where torch is kept from being imported by None in its place, ``datasets`` takes that for torch and fails; without it, it does not ask."""
    kept_away = "torch" in sys.modules and sys.modules["torch"] is None
    if kept_away:
        del sys.modules["torch"]
    try:
        yield
    finally:
        if kept_away:
            sys.modules.setdefault("torch", None)  # type: ignore[arg-type]


def read_split(splits: Mapping[str, Any], split: str, text: Sequence[str], label: str | None, origin: str) -> Rows:
    """All rows of ``split``, with the columns ``text``; without any, all columns as they are.

    UserError: there is none of that name, it is empty or lacks a column.
    """
    import datasets

    if split not in splits:
        raise UserError(f"{origin} has no split {split!r}{did_you_mean(split, list(splits))} (splits: {listed(list(splits))})")
    found = splits[split]
    called = f"{origin}, split {split}"
    if not text:
        return _whole(found, called)
    require_columns(columns(text, label), found.column_names, called)
    feature = None if label is None else found.features[label]
    feature = getattr(feature, "feature", feature)  # of each word
    names = feature.names if isinstance(feature, datasets.ClassLabel) else None
    try:
        table = found.select_columns(columns(text, label)).with_format("arrow")[:]
    except (OSError, ValueError) as error:
        raise UserError(f"{called} cannot be read: {one_line(error)}") from error
    rows = rows_of_table(table, text, label, names, called)
    if len(rows) == 0:
        raise UserError(f"{called} has no rows")
    return rows


def _whole(found: Any, called: str) -> Rows:
    try:
        rows = whole_rows(found.with_format("arrow")[:], called)
    except (OSError, ValueError) as error:
        raise UserError(f"{called} cannot be read: {one_line(error)}") from error
    if len(rows) == 0:
        raise UserError(f"{called} has no rows")
    return rows
