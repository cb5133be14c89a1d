"""Parquet files of numbered texts, in a folder or in a store in memory, and jobs that stream them."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from lmj_api.spec import JobSpec, LiveMigrationJob
from lmj_trainer.store.port import Entry, Ref

from ..store.memory import MemoryStore  # noqa: TID252 - tests are no package


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """Texts that say which row they are, with a label."""
    return [{"text": f"row {number}", "more": number, "label": "pn"[number % 2]} for number in range(first, first + count)]


def parquet_of(content: Sequence[dict[str, Any]] | pa.Table, group: int = 4, **options: Any) -> bytes:
    """A file with row groups of so many rows."""
    table = content if isinstance(content, pa.Table) else pa.Table.from_pylist(list(content))
    file = io.BytesIO()
    parquet.write_table(table, file, row_group_size=group, **options)
    return file.getvalue()


class Bucket(MemoryStore):
    """A bucket that says what is asked of it, and can fail."""

    def __init__(self, **files: bytes) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []
        self.largest = 0
        self.tags: dict[str, str] = {}
        self.fail: Callable[[str, str], None] = lambda what, key: None
        self._asking = threading.Lock()
        for name, content in files.items():
            self.put(name, [content])

    def open(self, place: str) -> Ref:
        assert place == "s3://rows"
        return Ref(self)

    def describe(self, key: str) -> str:
        return f"s3://rows/{key}"

    def _ask(self, what: str, key: str) -> None:
        with self._asking:
            self.asked.append((what, key))
        self.fail(what, key)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self._ask("get", key)
        return super().get(key, start, size)

    def fill(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        self._ask("fill", key)
        for buffer in buffers:
            self.largest = max(self.largest, len(buffer))
            content = super().get(key, start, len(buffer))
            if len(content) != len(buffer):
                raise OSError(f"{key} ends")
            buffer[:] = content
            start += len(buffer)

    def entry(self, key: str) -> Entry:
        self._ask("entry", key)
        found = super().entry(key)
        return Entry(found.size, found.time, self.tags.get(key, ""))


@pytest.fixture
def bucket() -> Bucket:
    """10 and 7 rows in two files, in row groups of 4: five groups."""
    return Bucket(**{"train/b.parquet": parquet_of(rows(10, 7)), "train/a.parquet": parquet_of(rows(0, 10))})


Specs = Callable[..., JobSpec]


@pytest.fixture
def spec(tmp_path: Path) -> Specs:
    """Makes specs, with these fields of the dataset."""

    def make(
        source: str = "s3://rows/train",
        training: dict[str, Any] | None = None,
        output: dict[str, Any] | None = None,
        **dataset: Any,
    ) -> JobSpec:
        wanted = {"source": source, "text": ["text"], "label": "label", "streaming": {"rowGroups": 2}} | dataset
        return LiveMigrationJob.model_validate(
            {
                "metadata": {"name": "streamed"},
                "spec": {
                    "model": {"source": "some/model", "labels": ["n", "p"]},
                    "dataset": wanted,
                    "training": {"batchSize": 4, "epochs": 2, "seed": 3} | (training or {}),
                    "output": output or {"path": str(tmp_path / "out")},
                },
            }
        ).spec

    return make


def silent(text: str) -> None:
    pass
