"""What is known of the training rows before any of them is read: the files, and how many rows each of their row groups has."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_128

from lmj_trainer.errors import UserError

if TYPE_CHECKING:
    from lmj_api.spec.streaming import Streaming
    from lmj_trainer.data.order import Indices

_FORMAT = 1
_BESIDE = 16
"""Bytes that a row takes beside its columns: its place in the window's order, and where its text begins."""


@dataclass(frozen=True)
class File:
    """One of the files, as it was found at first."""

    name: str
    """Below the source; ``""``: it is the source."""
    size: int
    """Bytes."""
    tag: str
    """What its store calls its content; ``""``: nothing."""
    footer: str
    """Digest of its footer, hex."""
    rows: tuple[int, ...]
    """Of each row group."""
    bytes: tuple[int, ...]
    """Of each row group's columns that are read, with or without compression, whichever is more."""


@dataclass(frozen=True)
class Index:
    """All files of a source, sorted by their names."""

    source: str
    files: tuple[File, ...]
    names: tuple[str, ...] | None
    """Label names that the files have for the numbers of their label column; None: they have none."""

    @cached_property
    def groups(self) -> list[tuple[int, int]]:
        """The row groups that have rows, in order: the number of the file, and its own number there."""
        return [(f, g) for f, file in enumerate(self.files) for g, rows in enumerate(file.rows) if rows]

    @cached_property
    def counts(self) -> Indices:
        """Rows of each of these groups ``[groups]``."""
        return np.array([self.files[f].rows[g] for f, g in self.groups], dtype=np.int64)

    @cached_property
    def firsts(self) -> Indices:
        """Which row of its file the first one of each of these groups is, from 1 ``[groups]``."""
        before = [np.cumsum([1, *file.rows], dtype=np.int64) for file in self.files]
        return np.array([before[f][g] for f, g in self.groups], dtype=np.int64)

    @property
    def rows(self) -> int:
        """Of all files."""
        return int(self.counts.sum())

    @cached_property
    def digest(self) -> str:
        """Of what the rows and their order depend on. Not of where the files lie, nor of what their store calls them: they may be copied."""
        told = [[file.name, file.size, file.footer, file.rows] for file in self.files]
        return xxh3_128(json.dumps(told).encode()).hexdigest()

    def require_room(self, streaming: Streaming) -> None:
        """UserError: by what the files claim, a window may need more than its part of the memory that the job gives."""
        costs = np.array([self.files[f].bytes[g] for f, g in self.groups], dtype=np.float64) + _BESIDE * self.counts.astype(
            np.float64
        )
        largest = np.sort(costs)[-streaming.row_groups :]
        room = window_bytes(streaming)
        if (needed := float(largest.sum())) <= room:
            return
        at = int(np.argmax(costs))
        file, group = self.groups[at]
        rows = max(1, int(self.counts[at] * room / streaming.row_groups / costs[at]))
        raise UserError(
            f"dataset.source {self.source}: {len(largest)} row groups may take {needed / 1e6:.1f} MB, and a rank has room for "
            f"{room / 1e6:.1f} MB (half of dataset.streaming.memoryMb); the largest is row group {group} of "
            f"{self.files[file].name or 'the file'}: lower dataset.streaming.rowGroups, raise memoryMb, or write smaller row groups "
            f"(row_group_size={rows})"
        )

    def to_json(self) -> bytes:
        """To be kept."""
        return json.dumps({"format": _FORMAT, **asdict(self)}).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> Index:
        """What :meth:`to_json` gave. Raises ValueError, KeyError, TypeError for anything else."""
        fields = json.loads(content)
        if fields["format"] != _FORMAT:
            raise ValueError(f"format {fields['format']}")
        files = [File(**{**each, "rows": tuple(each["rows"]), "bytes": tuple(each["bytes"])}) for each in fields["files"]]
        names = fields["names"]
        return cls(fields["source"], tuple(files), None if names is None else tuple(names))


def window_bytes(streaming: Streaming) -> float:
    """Bytes of one window at most: while a rank trains on one, it reads the next."""
    return streaming.memory_mb * 1e6 / 2
