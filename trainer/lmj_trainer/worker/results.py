"""The results of a job in object storage: pieces of its records while it trains, and in the end the files that users look for.

What one view's rank 0 writes while it trains has a name of its own, so nobody writes over it, however late it comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmj_api.bounds import LARGEST
from lmj_api.layout import Layout
from lmj_trainer.store.ranges import ahead
from lmj_trainer.store.registry import open_place
from lmj_trainer.worker.claims import StoreClaims

if TYPE_CHECKING:
    from lmj_api.spec import JobSpec
    from lmj_trainer.store.port import Ref

_LINES = re.compile(r"([0-9]{10})-[0-9]{8}\.jsonl")
_EVALUATIONS = re.compile(r"([0-9]{10})\.json")
_BEGUN = re.compile(r"([0-9]{10})-from-([0-9]{1,18})")
_PUBLISHED = re.compile(r"([0-9]{10})\.published")
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
        return StoreClaims(self.root / self.layout.recorders.name, self._given)

    @property
    def trained(self) -> Ref:
        """The job whose results these are."""
        return self.root / self.layout.trained.name

    def any(self) -> bool:
        """Whether anything was trained: a checkpoint is written after the lines up to it."""
        names = {self.layout.metrics.name, self.layout.evaluation.name}
        return any(map(_LINES.fullmatch, self._names())) or not names.isdisjoint(_files_of(self.root))

    @property
    def _records(self) -> Ref:
        return self.root / ".records"

    def add_lines(self, claim: int, number: int, content: bytes) -> None:
        """Keep lines of the metrics. ``claim``, ``number``: two numbers that together are given once; later lines have higher ones."""
        (self._records / f"{claim:010d}-{number:08d}.jsonl").put([content])

    def forget_lines(self, claim: int, number: int) -> None:
        """Remove the lines that were kept before those of ``claim`` and ``number``, which have them all."""
        own = f"{claim:010d}-{number:08d}.jsonl"
        self._delete([name for name in self._names() if _LINES.fullmatch(name) and name < own])

    def add_evaluations(self, claim: int, content: bytes) -> None:
        """Keep the evaluations that the one with ``claim`` knows."""
        (self._records / f"{claim:010d}.json").put([content])

    def begin(self, claim: int, resume: int) -> None:
        """The one with ``claim`` goes on from the step ``resume``: what was kept of later steps by those before it counts no more."""
        (self._records / f"{claim:010d}-from-{resume}").put([b"\n"])

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Metrics: of training that was finished, then what was kept since, in order, each with the last step that counts of it. A later line of
        a step takes the place of an earlier.
        """
        yield from self._counting(self.layout.metrics.name, _LINES)

    def evaluations(self) -> Iterator[tuple[int, bytes]]:
        """The same of evaluations."""
        yield from self._counting(self.layout.evaluation.name, _EVALUATIONS)

    def clear(self, claim: int) -> None:
        """Remove what was kept up to ``claim``: all of it is in the files, and counts no more if it comes late."""
        mark = self._records / f"{claim:010d}.published"
        mark.put([b"\n"])
        self._delete([name for name in self._names() if name != mark.name])

    def publish(self, allowed: Callable[[], None]) -> None:
        """Have what is on this machine be there: metrics, evaluations, event files, and the models, each with the file last that makes it one.
        ``allowed`` raises when it may not be written any more.
        """
        for path in (self.layout.metrics, self.layout.evaluation):
            if path.exists():
                allowed()
                _put(path, self.root / path.name)
        for folder in (self.layout.tensorboard, self.layout.adapter, self.layout.int8, self.layout.model):
            self._publish(folder, allowed)

    def _publish(self, folder: Path, allowed: Callable[[], None]) -> None:
        there = self.root / folder.name
        here = sorted(folder.rglob("*")) if folder.is_dir() else []
        names = [str(path.relative_to(folder)) for path in here if path.is_file()]
        old = _files(there)
        # First: a reader finds the old model, none, or the new one.
        for name in sorted(old, key=lambda name: name != _LAST):
            if name == _LAST or name not in names:
                allowed()
                _below(there, name).delete()
        for name in sorted(names, key=lambda name: name == _LAST):
            allowed()
            _put(folder / name, _below(there, name))

    def _delete(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda name: (self._records / name).delete(), names):
                pass

    def _given(self) -> int:
        """The highest claim by which something was kept: names must not be used again."""
        return max((int(name[:10]) for name in self._names() if re.match(r"[0-9]{10}\b", name)), default=0)

    def _names(self) -> list[str]:
        return sorted(_files_of(self._records))

    def _counting(self, finished: str, kind: re.Pattern[str]) -> Iterator[tuple[int, bytes]]:
        names = self._names()
        over = max((int(found[1]) for name in names if (found := _PUBLISHED.fullmatch(name))), default=0)
        kept = [(int(found[1]), name) for name in names if (found := kind.fullmatch(name)) and int(found[1]) > over]
        begun = [(int(found[1]), int(found[2])) for name in names if (found := _BEGUN.fullmatch(name)) and int(found[1]) > over]
        files = [(over, self.root / finished), *((claim, self._records / name) for claim, name in kept)]
        contents = ahead(lambda file: _content(file[1]), files, _AT_ONCE)
        for (claim, _), content in zip(files, contents, strict=True):
            if content is not None:
                yield min((resume for later, resume in begun if later > claim), default=LARGEST), content


def _files_of(folder: Ref) -> list[str]:
    try:
        return folder.files()
    except FileNotFoundError:
        return []


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
