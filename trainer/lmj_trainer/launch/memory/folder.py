"""A folder of snapshots in memory (tmpfs): written in parts by the processes of one node, whole or not there whenever one is killed.

A snapshot is a folder ``step-N-view-V``. Each process writes into a site of its own, moves what it wrote into the snapshot, and last
renames a list of it, with sizes, into place. A snapshot is complete when the lists of all parts are there and each file has its size.
It is whole when it has what belongs to one rank alone of every rank of the job, not of this node's only: then any node can go on from it.
Nothing is synced: memory does not outlive its machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAME = re.compile(r"step-(\d{1,15})-view-(\d{1,15})")
_TRASH = ".trash-"
_MARGIN = 16 << 20
"""Bytes that stay free beside a snapshot: for the lists, and for what libraries write beside tensors."""


class NoRoomError(OSError):
    """A snapshot does not fit into memory."""


@dataclass(frozen=True)
class File:
    """A file of a snapshot."""

    name: str
    """Relative to the snapshot's folder."""
    size: int
    rank: int | None
    """Whose it is alone; None: it is the same on all ranks."""


@dataclass(frozen=True)
class Snapshot:
    """A complete snapshot."""

    step: int
    view: int
    path: Path
    world: int
    """Processes of the whole job that took it."""
    files: tuple[File, ...]

    @property
    def key(self) -> tuple[int, int]:
        """Of two, that with the greater key is newer: a later view may do steps again."""
        return self.view, self.step

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)

    @property
    def ranks(self) -> set[int]:
        """Those of which it has what is theirs alone."""
        return {file.rank for file in self.files if file.rank is not None}

    @property
    def whole(self) -> bool:
        """It has what every rank needs, so that a node without memory can take it over."""
        return self.ranks >= set(range(self.world)) and any(file.rank is None for file in self.files)


def name_of(step: int, view: int) -> str:
    """Of the folder of a snapshot."""
    return f"step-{step}-view-{view}"


def key_of(name: str) -> tuple[int, int] | None:
    """See :attr:`Snapshot.key`, from the name of a snapshot's folder; None: it is none."""
    named = _NAME.fullmatch(name)
    return None if named is None else (int(named[2]), int(named[1]))


def snapshots(folder: Path) -> list[Snapshot]:
    """The complete ones, newest first."""
    found = [snapshot for path in _folders(folder) if (snapshot := read(path)) is not None]
    return sorted(found, key=lambda snapshot: snapshot.key, reverse=True)


def read(path: Path) -> Snapshot | None:
    """The snapshot in the folder ``path``; None: there is no complete one."""
    named = _NAME.fullmatch(path.name)
    if named is None:
        return None
    files: dict[str, File] = {}
    part, parts, world = 0, 1, 0
    while part < parts:
        try:
            listed = json.loads((path / _list_of(part)).read_text())
            parts, world = int(listed["parts"]), int(listed["world"])
            for name, size, rank in listed["files"]:
                if (path / name).stat().st_size != size:
                    return None
                files[name] = File(name, size, rank)
        except (OSError, ValueError, KeyError, TypeError):  # not there, or it cannot be read: then nobody can go on from it
            return None
        part += 1
    return Snapshot(int(named[1]), int(named[2]), path, world, tuple(files.values()))


@dataclass(frozen=True)
class Writing:
    """One process's part of a snapshot, under way."""

    path: Path
    """The snapshot's folder."""
    site: Path
    """Write the part's files here."""
    part: int
    parts: int
    world: int

    owners: dict[str, int] = field(default_factory=dict)
    """Rank, from the name of a file that is one rank's alone."""

    def own(self, rank: int, names: str) -> dict[str, bytes]:
        """The files in the site whose names match the regular expression ``names``: they are ``rank``'s alone. Raises OSError."""
        is_own = re.compile(names).fullmatch
        found = {path.name: path.read_bytes() for path in self.site.iterdir() if is_own(path.name) is not None}
        self.owners.update(dict.fromkeys(found, rank))
        return found

    def add(self, rank: int, files: Mapping[str, bytes]) -> None:
        """Put ``files`` into the site, which are ``rank``'s alone. Raises OSError, and ValueError: a name is a path."""
        for name, content in files.items():
            if "/" in name or name.startswith("."):
                raise ValueError(f"rank {rank} calls a file {name[:80]!r}")
            (self.site / name).write_bytes(content)
        self.owners.update(dict.fromkeys(files, rank))

    def complete(self) -> None:
        """Make what is in the site the part. Raises OSError."""
        files: list[tuple[str, int, int | None]] = []
        for file in sorted(path for path in self.site.rglob("*") if path.is_file()):
            name = file.relative_to(self.site)
            files.append((str(name), file.stat().st_size, self.owners.get(str(name))))
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, self.path / name)
        partial = self.path / f".{_list_of(self.part)}"
        partial.write_text(json.dumps({"parts": self.parts, "world": self.world, "files": files}))
        os.replace(partial, self.path / _list_of(self.part))
        shutil.rmtree(self.site)

    def discard(self) -> None:
        """Remove what was written, as far as that goes."""
        shutil.rmtree(self.site, ignore_errors=True)


def begin(folder: Path, step: int, view: int, *, part: int = 0, parts: int = 1, world: int = 1, size: int = 0) -> Writing:
    """Begin a part of the snapshot of ``step``.

    Part 0 makes room first: of the complete snapshots the newest alone is left, so two are in memory at most. ``size``: bytes
    that the part will have, about. Raises NoRoomError: they do not fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name_of(step, view)
    if part == 0:
        _make_room(folder, path)
        free = room(folder)
        if size and size + _MARGIN > free:
            raise NoRoomError(f"{folder} has room for {free >> 20} MiB, and it needs {(size + _MARGIN) >> 20} MiB")
    # Of an earlier process with the same view, if anybody's: it is void from here on.
    (path / _list_of(part)).unlink(missing_ok=True)
    site = path / f".part-{part}"
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    return Writing(path, site, part, parts, world)


def forget(folder: Path, view: int, keep: Path | None) -> None:
    """Processes of ``view`` go on from ``keep``: nothing else that earlier views left means anything. Raises OSError.

    None: they go on from elsewhere. What is there stays until there is something newer: a failure before that can go back to it.
    """
    for path in _folders(folder) if keep is not None else ():
        named = _NAME.fullmatch(path.name)
        if keep is not None and named is not None and int(named[2]) < view and path.name != keep.name:
            _remove(path)
    _empty_trash(folder)


def room(folder: Path) -> int:
    """Bytes that may be written to ``folder``: what its file system has, and what the processes' memory limit leaves."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    limits = [free, _left_in_group(Path("/sys/fs/cgroup"))]
    return min(limit for limit in limits if limit is not None)


def _left_in_group(group: Path) -> int | None:
    """Bytes that the control group ``group`` (version 2) may still take; None: it has no limit. Files in the page cache can go."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except OSError:  # no such controller here
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used + int(statistics.get("inactive_file", 0)))


def _make_room(folder: Path, writing: Path) -> None:
    newest = next((snapshot.path for snapshot in snapshots(folder) if snapshot.path != writing), None)
    for path in _folders(folder):
        if path not in (newest, writing):
            _remove(path)
    _empty_trash(folder)


def _remove(path: Path) -> None:
    """At once for whoever looks: what is half removed has another name."""
    trash = path.with_name(f"{_TRASH}{path.name}")
    shutil.rmtree(trash, ignore_errors=True)
    os.replace(path, trash)


def _empty_trash(folder: Path) -> None:
    for path in folder.glob(f"{_TRASH}*"):
        shutil.rmtree(path, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
    except FileNotFoundError:
        return []


def _list_of(part: int) -> str:
    return f"part-{part}.json"


def sizes(value: Any) -> int:
    """Bytes of all tensors in ``value``: dicts, lists and tuples of tensors and other things."""
    if isinstance(value, dict):
        return sum(map(sizes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(sizes, value))
    nbytes = getattr(value, "nbytes", 0)
    return nbytes if isinstance(nbytes, int) else 0
