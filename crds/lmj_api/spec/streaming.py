"""Training rows that are read by parts while a job trains: what they need, and what cannot be done with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from lmj_api.base import Message

if TYPE_CHECKING:
    from lmj_api.spec.dataset import Dataset
    from lmj_api.spec.model import Model
    from lmj_api.spec.training import Training

ENDING: Final = ".parquet"
"""Of files that can be read by parts."""
OTHER_ENDINGS: Final = (".csv", ".tsv", ".jsonl", ".json")
"""Of files of rows that cannot."""
CONVERT: Final = (
    "streaming reads Parquet by row groups: write the rows as Parquet (datasets: Dataset.to_parquet), or leave streaming out"
)


class Streaming(Message):
    """Reads the training rows of Parquet files by row groups while the job trains, where they are: nothing of them is fetched or tokenized before."""

    row_groups: Annotated[int, Field(ge=1, le=4096)] = 16
    """Row groups whose rows are mixed, which a rank has in memory: an epoch takes all row groups in a random order, so many at a time, and the
    rows of these in a random order. Another number is another order of rows."""
    memory_mb: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Megabytes of rows that a rank may hold: those that it trains on, and the next ones, which are read meanwhile. Files that may need more are
    refused before training begins."""


def unfit_for_streaming(dataset: Dataset, model: Model, training: Training) -> str | None:
    """What a job asks for that does not go with its ``dataset.streaming``; None: nothing, or it has none."""
    if dataset.streaming is None:
        return None
    splits = dataset.splits
    if dataset.source.lower().endswith(OTHER_ENDINGS):
        return f"dataset.source {dataset.source}: {CONVERT}"
    for name, given in (
        ("model.scratch", model.scratch is not None),
        ("model.python", model.python is not None),
        ("model.task", model.task.windowed),
        ("model.labels", model.task.named and model.labels is None),
        ("dataset.packing", dataset.packing),
        ("dataset.config", dataset.config is not None),
        ("dataset.revision", dataset.revision is not None),
        ("dataset.splits.train", splits.train != "train"),
        ("dataset.splits.validationFraction", splits.validation_fraction > 0),
        ("dataset.splits.testFraction", splits.test_fraction > 0),
        ("dataset.maxSamples.train", dataset.max_samples.train is not None),
        ("training.groupByLength", training.group_by_length),
    ):
        if given:
            return f"{name} {FROM_ROWS[name]}"
    return None


_WITH = "does not go with dataset.streaming: "
FROM_ROWS: Final = {
    "model.scratch": f"{_WITH}its vocabulary is learned from all training texts; name a model with a tokenizer in model.source",
    "model.python": f"{_WITH}the class gets whole rows, which have to be at hand; leave streaming out",
    "model.task": f"{_WITH}a long row becomes several, and how many is known when all are tokenized; leave streaming out",
    "model.labels": "is missing: with dataset.streaming nobody looks through all rows for their labels; name them",
    "dataset.packing": f"{_WITH}how many samples there are is known when all rows are tokenized; leave one of them out",
    "dataset.config": f"{_WITH}it is of a hub's dataset, and streaming reads Parquet files; leave it out",
    "dataset.revision": f"{_WITH}it is of a hub's dataset, and streaming reads Parquet files; leave it out",
    "dataset.splits.train": f"{_WITH}dataset.source has the training rows; leave it out",
    "dataset.splits.validationFraction": f"{_WITH}no rows are cut off; name a file in dataset.splits.validation",
    "dataset.splits.testFraction": f"{_WITH}no rows are cut off; name a file in dataset.splits.test",
    "dataset.maxSamples.train": f"{_WITH}all row groups are read; name a folder with fewer files, or set training.maxSteps",
    "training.groupByLength": f"{_WITH}how long rows are is known when all are tokenized; leave one of them out",
}
"""Fields that need all rows at hand, and what to do instead."""
