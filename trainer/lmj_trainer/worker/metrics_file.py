"""metrics.jsonl on storage: a line a step, in order, whatever else was written into it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from lmj_trainer.durable import atomically

_LONGEST = 1 << 16
"""Bytes of a line: what is longer is no line of ours."""
_NUMBER = rb"(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?+[0-9]++)?+|null|NaN|-?Infinity)"
_OURS = re.compile(rb'\{"step": (0|[1-9][0-9]{0,17})(?:, "(?!step")[A-Za-z]++": ' + _NUMBER + rb")*+\}\n")
"""Lines as they are written here. All are read when a view begins, while training waits: this takes a quarter of the time that JSON does."""


class MetricsFile:
    """Open for appending, with the lines up to a step, each step once. A torn line is that of a step that is done again or told again; others'
    lines may be among ours.
    """

    def __init__(self, path: Path, last: int, allowed: Callable[[], None]) -> None:
        """``last``: the last step whose line stays. ``allowed`` raises when it may not be changed. Raises OSError when it cannot be opened."""
        end, clean, self.newest = 0, True, 0
        """``newest``: the last step that is recorded; 0: none."""
        if path.exists():
            with path.open("rb") as file:
                for step, offset, line in kept_lines(file, last):
                    clean = clean and offset == end
                    end, self.newest = offset + len(line), step
        allowed()
        if not clean:
            with path.open("rb") as file, atomically(path) as partial, partial.open("wb") as out:
                for _, _, line in kept_lines(file, last):
                    out.write(line)
                out.flush()
                end = out.tell()
                allowed()
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # A disk that is full has room for a file that gets shorter.
        os.ftruncate(self._file, end)

    def append(self, content: bytes) -> None:
        """Write whole lines. Raises OSError when it could not write all of them: then the file is to be opened again."""
        while content:
            content = content[os.write(self._file, content) :]

    def duplicate(self) -> int:
        """A descriptor of it, for who makes it durable."""
        return os.dup(self._file)

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


def kept_lines(file: BinaryIO, last: int) -> Iterator[tuple[int, int, bytes]]:
    """Steps, offsets and lines of ``file``, from where it is, that count: whole ones of ours, each of a later step than those before, up to
    ``last``.
    """
    offset = newest = 0
    whole = True
    while line := file.readline(_LONGEST):
        begins, whole = whole, line.endswith(b"\n")
        step = _step(line) if begins and whole else None
        if step is not None and newest < step <= last:
            yield step, offset, line
            newest = step
        offset += len(line)


def _step(line: bytes) -> int | None:
    if (ours := _OURS.fullmatch(line)) is not None:
        return int(ours[1])
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = value.get("step") if isinstance(value, dict) else None
    return step if type(step) is int else None
