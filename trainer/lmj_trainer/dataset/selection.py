"""Which rows go where: caps and fractions, in the order of the seed; and their labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmj_api.spec import Dataset, JobSpec
from lmj_trainer.data.labels import Labels
from lmj_trainer.data.order import Indices, selection_order
from lmj_trainer.data.rows import Rows
from lmj_trainer.data.source import DataSource, Say
from lmj_trainer.errors import UserError
from lmj_trainer.task.registry import TASKS
from lmj_trainer.wording import WARNING, listed


@dataclass(frozen=True, eq=False)
class Selected:
    """The rows of a split and their label ids."""

    rows: Rows
    """The rows."""
    ids: NDArray[Any]
    """Ids of their labels, as of the task."""


@dataclass(frozen=True, eq=False)
class Selection:
    """All splits of a job, checked: every text and label is there."""

    labels: Labels
    """The label mapping."""
    splits: Mapping[str, Selected]
    """``train``, and ``validation`` and ``test`` where there are any."""


def select(spec: JobSpec, say: Say) -> Selection:
    """Reads and splits the dataset of ``spec``. UserError: anything wrong with it."""
    task = TASKS[spec.model.task]
    source, rows = _training_rows(spec, say)
    labels = task.labels(rows, spec.model.labels, spec.dataset.label)
    selected = {}
    for part, found in _parts(spec, source, rows, say).items():
        task.check(found, say)
        ids = task.ids(found, labels)
        require_labels(found, ids, part)
        selected[part] = Selected(found, ids)
    _warn_of_unseen(labels, selected["train"].ids, say)
    return Selection(labels, selected)


def select_rows(spec: JobSpec, say: Say) -> Mapping[str, Rows]:
    """The rows of each split, as they are. UserError: they cannot be read."""
    return _parts(spec, *_training_rows(spec, say), say)


def _training_rows(spec: JobSpec, say: Say) -> tuple[DataSource, Rows]:
    """The rows that the splits without a name are cut off."""
    dataset, source = spec.dataset, DataSource.of(spec)
    rows = source.read(dataset.splits.train, dataset.columns, dataset.label, say)
    return source, cap(rows, dataset.max_samples.train, spec.training.seed, "train")


def _parts(spec: JobSpec, source: DataSource, rows: Rows, say: Say) -> dict[str, Rows]:
    splits = spec.dataset.splits
    parts = cut(rows, splits.validation_fraction, splits.test_fraction, spec.training.seed)
    capped = {part: cap(found, _most(spec, part), spec.training.seed, part) for part, found in parts.items() if part != "train"}
    return parts | capped | named(spec, source, say)


def named(spec: JobSpec, source: DataSource, say: Say) -> dict[str, Rows]:
    """The rows of the splits that ``spec`` names beside the training rows. UserError: they cannot be read."""
    dataset, parts = spec.dataset, dict[str, Rows]()
    for part, name in (("validation", dataset.splits.validation), ("test", dataset.splits.test)):
        if name is not None:
            rows = source.read_other(name, dataset.columns, dataset.label, f"dataset.splits.{part}", say)
            parts[part] = cap(rows, _most(spec, part), spec.training.seed, part)
    return parts


def require_labels(rows: Rows, ids: NDArray[Any], part: str) -> None:
    """UserError: a row may have several labels, or none, and no row of ``part`` has any: it says nothing of a model."""
    if ids.ndim == 2 and not ids.any():
        raise UserError(
            f"{rows.origin}: no {part} row has a label: name the column of the labels as dataset.label, or other rows as "
            f"dataset.splits.{part}"
        )


def _most(spec: JobSpec, part: str) -> int | None:
    most: int | None = getattr(spec.dataset.max_samples, part)
    return most


def _warn_of_unseen(labels: Labels, ids: NDArray[Any], say: Say) -> None:
    if ids.dtype.kind != "i":
        return  # numbers, not labels
    seen = ids.sum(0) if ids.ndim == 2 else np.bincount(ids, minlength=len(labels.names))
    unseen = [repr(name) for name, count in zip(labels.names, seen, strict=True) if count == 0]
    if unseen:
        say(f"{WARNING}no training row has label {listed(unseen, 5)}: the model never learns it")


def cap(rows: Rows, most: int | None, seed: int, part: str) -> Rows:
    """At most ``most`` of the rows, the first in the order of the seed; they stay in the order of the source."""
    if most is None or len(rows) <= most:
        return rows
    return rows.take(np.sort(selection_order(seed, f"cap {part}", len(rows))[:most]))


def cut(rows: Rows, validation: float, test: float, seed: int) -> dict[str, Rows]:
    """``rows`` as ``train``, ``validation`` and ``test``; a fraction of 0 gives none, any other at least one row."""
    sizes = {name: max(1, round(part * len(rows))) for name, part in (("validation", validation), ("test", test)) if part}
    if not sizes:
        return {"train": rows}
    left = len(rows) - sum(sizes.values())
    if left < 1:
        raise UserError(
            f"{rows.origin}: {len(rows)} rows are too few for {' and '.join(sizes)} fractions: no training row is left"
        )
    order: Indices = selection_order(seed, "cut", len(rows))
    parts, start = {"train": rows.take(np.sort(order[sum(sizes.values()) :]))}, 0
    for name, size in sizes.items():
        parts[name] = rows.take(np.sort(order[start : start + size]))
        start += size
    return parts


def selection_key(dataset: Dataset, seed: int, labels: list[str] | None) -> dict[str, object]:
    """Everything that a selection depends on, as JSON: contents by digest."""
    source = DataSource(dataset.source, dataset.config, dataset.revision)
    splits = dataset.splits
    return {
        "source": source.digest(),
        "splits": _digests({"train": splits.train, "validation": splits.validation, "test": splits.test}),
        "fractions": [splits.validation_fraction, splits.test_fraction],
        "caps": dataset.max_samples.model_dump(),
        "text": dataset.text,
        "label": dataset.label,
        "labels": labels,
        "seed": seed,
    }


def others_key(dataset: Dataset, seed: int, labels: list[str] | None) -> dict[str, object]:
    """The same of the splits beside the training rows alone."""
    return {
        "splits": _digests({"validation": dataset.splits.validation, "test": dataset.splits.test}),
        "caps": {"validation": dataset.max_samples.validation, "test": dataset.max_samples.test},
        "text": dataset.text,
        "label": dataset.label,
        "labels": labels,
        "seed": seed,
    }


def _digests(names: Mapping[str, str | None]) -> dict[str, str]:
    """Of splits that are files of their own their content, of others their names."""
    from lmj_trainer.data.files import is_file_name

    return {part: DataSource(name).digest() if is_file_name(name) else name for part, name in names.items() if name is not None}
