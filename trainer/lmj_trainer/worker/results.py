"""The results of a job in object storage: pieces of its records while it trains, and in the end the files that users look for.

What one view's rank 0 writes while it trains has a name of its own, so nobody writes over it, however late it comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmj_api.layout import Layout
from lmj_trainer.store.registry import open_place
from lmj_trainer.worker.claims import StoreClaims

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec
    from lmj_trainer.store.port import Ref

_LINES = re.compile(r"[0-9]{10}-[0-9]{8}\.jsonl")
_EVALUATIONS = re.compile(r"[0-9]{10}\.json")
_AT_ONCE = 8
"""Requests under way."""
_PIECE = 8 << 20
_LAST = "config.json"
"""Of a model's folder: without it there is no model for anybody who loads one."""


@dataclass(frozen=True)
class Results:
    """Those in the folder ``root``. All methods may raise OSError."""

    root: Ref
    layout: Layout
    """Where they lie on this machine."""

    @classmethod
    def of(cls, spec: JobSpec) -> Results | None:
        """None: they lie on a volume. Raises UserError where that kind of place cannot be opened here."""
        layout = Layout.of(spec)
        return None if layout.results is None else cls(open_place(layout.results), layout)

    @property
    def claims(self) -> StoreClaims:
        """Of who may write here."""
        return StoreClaims(self.root / self.layout.recorders.name)

    @property
    def trained(self) -> Ref:
        """The job whose results these are."""
        return self.root / self.layout.trained.name

    @property
    def _records(self) -> Ref:
        return self.root / ".records"

    def add_lines(self, claim: int, number: int, content: bytes) -> None:
        """Keep lines of the metrics. ``claim``, ``number``: two numbers that together are given once; later lines have higher ones."""
        (self._records / f"{claim:010d}-{number:08d}.jsonl").put([content])

    def add_evaluations(self, claim: int, content: bytes) -> None:
        """Keep the evaluations that the one with ``claim`` knows."""
        (self._records / f"{claim:010d}.json").put([content])

    def lines(self) -> Iterator[bytes]:
        """Metrics: of training that was finished, then what was kept since, in order. A later line of a step takes the place of an earlier."""
        yield from self._contents([self.root / self.layout.metrics.name, *self._kept(_LINES)])

    def evaluations(self) -> Iterator[bytes]:
        """The same of evaluations."""
        yield from self._contents([self.root / self.layout.evaluation.name, *self._kept(_EVALUATIONS)])

    def clear(self) -> None:
        """Remove what was kept: all of it is in the files."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda ref: ref.delete(), self._kept(re.compile(".*"))):
                pass

    def publish(self) -> None:
        """Have what is on this machine be there: metrics, evaluations, and the models, each with the file last that makes it one."""
        for path in (self.layout.metrics, self.layout.evaluation):
            if path.exists():
                _put(path, self.root / path.name)
        for folder in (self.layout.adapter, self.layout.int8, self.layout.model):
            self._publish(folder)

    def _publish(self, folder: Path) -> None:
        there = self.root / folder.name
        here = sorted(folder.rglob("*")) if folder.is_dir() else []
        names = [str(path.relative_to(folder)) for path in here if path.is_file()]
        old = _files(there)
        # First: a reader finds the old model, none, or the new one.
        for name in sorted(old, key=lambda name: name != _LAST):
            if name == _LAST or name not in names:
                _below(there, name).delete()
        for name in sorted(names, key=lambda name: name == _LAST):
            _put(folder / name, _below(there, name))

    def _kept(self, kind: re.Pattern[str]) -> list[Ref]:
        try:
            return [self._records / name for name in sorted(self._records.files()) if kind.fullmatch(name)]
        except FileNotFoundError:
            return []

    def _contents(self, files: Sequence[Ref]) -> Iterator[bytes]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # Not all at once: what waits here is in memory.
            for some in _batches(files):
                yield from filter(None, pool.map(_content, some))


def _batches(files: Sequence[Ref]) -> Iterator[Sequence[Ref]]:
    for start in range(0, len(files), 4 * _AT_ONCE):
        yield files[start : start + 4 * _AT_ONCE]


def _content(file: Ref) -> bytes | None:
    try:
        return file.get()
    except FileNotFoundError:
        return None


def _put(path: Path, there: Ref) -> None:
    with path.open("rb") as file:
        there.put(iter(lambda: file.read(_PIECE), b""))


def _files(folder: Ref) -> list[str]:
    """Names of the files in the folder, and in folders of it, as ``folder/file``."""
    try:
        return [*folder.files(), *(f"{name}/{file}" for name in folder.folders() for file in _files(folder / name))]
    except FileNotFoundError:
        return []


def _below(folder: Ref, name: str) -> Ref:
    for part in name.split("/"):
        folder = folder / part
    return folder
