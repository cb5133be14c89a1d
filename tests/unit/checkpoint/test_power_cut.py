"""A power cut, as file systems may show it: of a file, what was synced; of a folder, the names that were there when it was synced, or all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.on_disk import at, commit_manifest, file_digest, scan

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.names import checkpoint_name, part_file
from lmj_trainer.durable import write_atomically

pytestmark = pytest.mark.integration

DIGEST = "d" * 32


class Disk:
    """``root`` as it is in the caches, and what of it is durable."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, set[str]] = {}
        self.calls = 0
        self.until: int | None = None
        real = os.fsync

        def fsync(descriptor: int) -> None:
            self._step()
            real(descriptor)
            found = os.stat(descriptor)
            [path] = [p for p in (root, *root.rglob("*")) if p.stat().st_ino == found.st_ino]
            if path.is_dir():
                self._folders[found.st_ino] = set(os.listdir(path))
            else:
                self._files[found.st_ino] = path.read_bytes()

        monkeypatch.setattr(os, "fsync", fsync)
        for name in ("replace", "mkdir", "unlink"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        self._folders[root.stat().st_ino] = set()

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._step()
            return real(*arguments, **options)

        return call

    def _step(self) -> None:
        if self.until is not None and self.calls >= self.until:
            raise PowerCut
        self.calls += 1

    def after(self, target: Path, names: bool) -> None:
        """What is there after a cut now. ``names``: all names reached the disk, though nobody asked for that."""
        self._copy(self.root, target, names)

    def _copy(self, source: Path, target: Path, names: bool) -> None:
        target.mkdir()
        durable = self._folders.get(source.stat().st_ino, set())
        for path in source.iterdir():
            if not names and path.name not in durable:
                continue
            if path.is_dir():
                self._copy(path, target / path.name, names)
            else:
                (target / path.name).write_bytes(self._files.get(path.stat().st_ino, b""))


class PowerCut(BaseException):
    """Here."""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    with monkeypatch.context() as patch:
        yield Disk(root, patch)


def put(root: Path, step: int) -> None:
    folder = root / checkpoint_name(step, 1)
    files = []
    for rank in range(2):
        path = folder / part_file(rank)
        at(path).put([f"rank {rank} step {step}".encode()])
        files.append(ManifestFile(name=path.name, size=path.stat().st_size, xxh128=file_digest(path)))
    commit_manifest(folder, Manifest(job="j", view=1, step=step, epoch=0, state_digest=DIGEST, seconds=0, files=files))


def good(root: Path) -> list[int]:
    return [c.step for c in scan(root, DIGEST) if c.problem is None]


@pytest.mark.parametrize("names", [False, True])
def test_a_checkpoint_that_is_written_outlives_a_power_cut(disk: Disk, tmp_path: Path, names: bool) -> None:
    """The folders above it too, which its first one makes."""
    put(disk.root / "output" / "checkpoints", 10)
    disk.after(tmp_path / "after", names)
    assert good(tmp_path / "after" / "output" / "checkpoints") == [10]


@pytest.mark.parametrize("names", [False, True])
def test_a_power_cut_while_one_is_written_leaves_the_one_before(disk: Disk, tmp_path: Path, names: bool) -> None:
    seen = []
    for count in range(1000):
        root = disk.root / str(count)
        put(root, 10)
        disk.until, finished = disk.calls + count, False
        try:
            put(root, 20)
            finished = True
        except PowerCut:
            pass
        disk.until = None
        disk.after(tmp_path / "after", names)
        seen.append(good(tmp_path / "after" / str(count)))
        shutil.rmtree(tmp_path / "after")
        assert seen[-1] in ([10], [20, 10])
        if finished:
            break
    assert count > 5
    assert seen[0] == [10]
    assert seen[-1] == [20, 10]


@pytest.mark.parametrize("names", [False, True])
def test_a_file_is_the_old_or_the_new_one(disk: Disk, tmp_path: Path, names: bool) -> None:
    path = disk.root / "f"
    write_atomically(path, b"old")
    path.with_name("g").write_bytes(b"never synced")
    for count, content in ((0, b"old"), (1000, b"new")):
        disk.until = disk.calls + count
        with contextlib.suppress(PowerCut):
            write_atomically(path, b"new")
        disk.until = None
        target = tmp_path / str(count)
        disk.after(target, names)
        assert (target / "f").read_bytes() == content
        assert not (target / "g").exists() or (target / "g").read_bytes() == b"", "else this disk forgets nothing"
