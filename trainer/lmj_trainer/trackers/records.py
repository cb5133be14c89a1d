"""What a run has recorded since: rows and notes, read from its files while rank 0 writes them."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from lmj_api.layout import Layout
from lmj_api.protocol import Evaluation
from lmj_trainer.trackers.cursor import Cursor
from lmj_trainer.trackers.port import Note, Row
from lmj_trainer.trackers.views import ViewLine

_TRAINED = ("loss", "gradNorm", "learningRate", "samplesPerSecond", "epoch", "replicas")
_MEASURED = ("loss", "accuracy", "f1", "perplexity", "meanAbsoluteError", "correlation")
_TIMES = 20_000
_STRANGE = re.compile(r"[^\w.\- ]")
"""What is in no name that trackers take."""


class Batch(NamedTuple):
    """What is to be logged next."""

    rows: list[Row]
    notes: list[Note]
    cursor: Cursor
    """When it is."""
    more: bool
    """There is more than this."""


class MetricsTail:
    """The lines of metrics.jsonl as they come. The file is appended to, and cut back when steps are done again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._offset = self._last = 0
        self.times: dict[int, float] = {}
        """When the newest steps were committed: what is measured afterwards is of then."""

    def after(self, step: int, limit: int) -> Iterator[dict[str, Any]]:
        """The next lines of steps after ``step``, at most ``limit``, in order. Raises OSError."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            found = os.fstat(file.fileno())
            if step < self._last:
                self._rewind()  # what was read since was not logged
            if self._file != (found.st_dev, found.st_ino) or found.st_size < self._offset:
                self._rewind()
                self._file = (found.st_dev, found.st_ino)
            file.seek(self._offset)
            if self._offset and not self._fits(file.readline()):
                self._rewind()
            file.seek(self._offset)
            while limit and (line := file.readline()).endswith(b"\n"):
                self._offset += len(line)
                value = _value(line)
                if value is not None and value["step"] > self._last:
                    self._last = value["step"]
                    self._remember(value)
                    if self._last > step:
                        limit -= 1
                        yield value

    def _fits(self, line: bytes) -> bool:
        """Whether ``line``, where one is, is what comes after the newest that was read: else the file was cut back meanwhile."""
        if not line.endswith(b"\n"):
            return not line or line.startswith(b"{")
        value = _value(line)
        return value is not None and value["step"] == self._last + 1

    def _remember(self, value: dict[str, Any]) -> None:
        if (time := _time(value)) is not None:
            self.times[value["step"]] = time
            if len(self.times) > _TIMES:
                del self.times[next(iter(self.times))]

    def _rewind(self) -> None:
        self._offset = self._last = 0


class Records:
    """Of the run in an output folder."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._metrics = MetricsTail(layout.metrics)

    def after(self, cursor: Cursor, limit: int, *, last: bool = False) -> Batch:
        """What comes after ``cursor``: at most ``limit`` steps. ``last``: nothing more will come. Raises OSError.

        An evaluation waits for the line of its step, which is written before it.
        """
        rows = {int(value["step"]): _trained(value) for value in self._metrics.after(cursor.step, limit)}
        step, more = max([cursor.step, *rows]), len(rows) == limit
        known, filed = {tuple(pair) for pair in cursor.evaluations}, list(cursor.evaluations)
        for result in _evaluations(self._layout.evaluation):
            if (result.split, result.step) not in known and (result.step <= step or (last and not more)):
                filed.append((result.split, result.step))
                old = rows.get(result.step, Row(result.step, self._metrics.times.get(result.step), {}))
                rows[result.step] = old._replace(values={**old.values, **_measured(result)})
        notes = [note for note in _notes(self._layout.views, cursor.run) if note.view > cursor.view]
        view = max([cursor.view, *(note.view for note in notes)])
        update = {"step": step, "evaluations": filed, "view": view}
        shown = [row for _, row in sorted(rows.items()) if row.values]
        return Batch(shown, notes, cursor.model_copy(update=update), more)


def _value(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and type(value.get("step")) is int else None


def _finite(prefix: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, float]:
    return {f"{prefix}/{name}": float(v) for name, v in pairs if isinstance(v, int | float) and math.isfinite(v)}


def _time(value: dict[str, Any]) -> float | None:
    time = value.get("time")
    return float(time) if isinstance(time, int | float) and math.isfinite(time) else None


def _trained(value: dict[str, Any]) -> Row:
    return Row(value["step"], _time(value), _finite("train", ((name, value.get(name)) for name in _TRAINED)))


def _measured(result: Evaluation) -> dict[str, float]:
    values = result.model_dump(mode="json", by_alias=True, include={"loss", "accuracy", "f1", "perplexity"})
    values |= {"meanAbsoluteError": result.mean_absolute_error, "correlation": result.correlation}
    own = ((_STRANGE.sub("_", name), value) for name, value in result.metrics.items())
    # The loss is the loss, whatever a class calls so.
    return _finite(result.split, own) | _finite(result.split, ((name, values.get(name)) for name in _MEASURED))


def _evaluations(path: Path) -> list[Evaluation]:
    """Those on storage; none while what is there is nobody's, which the recorder tells."""
    try:
        return [Evaluation.model_validate(entry) for entry in json.loads(path.read_bytes())]
    except (FileNotFoundError, ValueError, RecursionError, TypeError):  # a ValidationError is a ValueError
        return []


def _notes(path: Path, run: str) -> list[Note]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found: dict[int, Note] = {}
    for line in lines:
        try:
            told = ViewLine.model_validate_json(line)
        except ValidationError:  # torn by a writer's end
            continue
        if told.run == run:
            found.setdefault(told.view, Note(told.view, told.step, told.reason))
    return [found[view] for view in sorted(found)]
