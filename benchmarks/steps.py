"""The steps that a job records, as it records them."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any


class Steps:
    """What is in a job's metrics, and what was in them before steps were done again."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seen: set[tuple[int, float]] = set()
        """Each step that was done, and when: a step that was done again is there twice."""
        self.highest = 0
        self._read, self._last = 0, b""

    def look(self) -> int:
        """Take note of the steps that were done meanwhile; the highest that ever was."""
        if not self.file.exists():
            return self.highest
        with self.file.open("rb") as file:
            # Read from where the last look ended, for looking must not cost what is measured. A file that is another now, or was cut off
            # for steps that are done again, does not have the last line there any more.
            file.seek(self._read)
            content = file.read()
            if not content.startswith(self._last):
                self._read = file.seek(0)
                content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            return self.highest
        lines = whole.splitlines(keepends=True)
        values = [json.loads(line) for line in lines]
        self._read, self._last = self._read + len(whole) - len(lines[-1]), lines[-1]
        self.seen.update((line["step"], line["time"]) for line in values)
        self.highest = max([self.highest, *(line["step"] for line in values)])
        return self.highest

    def lines(self) -> list[dict[str, Any]]:
        """What the file has now, one entry a line."""
        return [json.loads(line) for line in self.file.read_text().splitlines()]


def repeated(seen: Iterable[tuple[int, float]]) -> int:
    """How many steps were done again."""
    return sum(times - 1 for times in Counter(step for step, _ in seen).values())


def gaps(seen: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Each step that followed the one before it, and the seconds between the two."""
    ends = sorted((at, step) for step, at in seen)
    return [(after, b - a) for (a, step), (b, after) in pairwise(ends) if after == step + 1]


def median_step(seen: Iterable[tuple[int, float]]) -> float:
    """Seconds of a step. Raises StatisticsError when there are not two in a row."""
    return statistics.median(seconds for _, seconds in gaps(seen))
