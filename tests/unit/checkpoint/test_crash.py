"""A crash between any two operations of a write or a removal: a good checkpoint is always found."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from tests.on_disk import at, commit_manifest, file_digest, make_folder, remove, scan

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.names import checkpoint_name, part_file
from lmj_trainer.durable import write_atomically
from lmj_trainer.store import direct

pytestmark = pytest.mark.integration

DIGEST = "d" * 32
OPERATIONS = ("open", "fsync", "replace", "unlink", "rmdir", "mkdir", "scandir")


class Crash(BaseException):
    """The machine stops here."""


@contextmanager
def crash_at(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[list[str]]:
    """From the ``count``-th operation on (from 0) nothing reaches the disk any more; yields the operations that did."""
    done: list[str] = []

    def step(name: str) -> None:
        if len(done) >= count:
            raise Crash(name)
        done.append(name)

    def wrap(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            step(name)
            return real(*args, **kwargs)

        return call

    def torn_write(file: IO[bytes], content: bytes | memoryview) -> None:
        file.write(content[: len(content) // 2])
        step("write")
        file.write(content[len(content) // 2 :])

    with monkeypatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, wrap(name, getattr(os, name)))
        patch.setattr(direct, "write_all", torn_write)
        yield done


def put(root: Path, step: int, content: str = "") -> None:
    folder = root / checkpoint_name(step, 1)
    files = []
    for rank in range(2):
        path = folder / part_file(rank)
        at(path).put([f"rank {rank} step {step} {content}".encode()])
        files.append(ManifestFile(name=path.name, size=path.stat().st_size, xxh128=file_digest(path)))
    commit_manifest(folder, Manifest(job="j", view=1, step=step, epoch=0, state_digest=DIGEST, seconds=0, files=files))


def good(root: Path) -> list[int]:
    return [c.step for c in scan(root, DIGEST) if c.problem is None]


def every_crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, act: Callable[[Path], None]) -> Iterator[tuple[Path, bool]]:
    """``act`` on a fresh folder with checkpoints 10 and 20, crashed at each of its operations; then once to its end."""
    for count in range(1000):
        root = tmp_path / str(count)
        root.mkdir()
        put(root, 10)
        put(root, 20)
        finished = False
        with crash_at(monkeypatch, count):
            try:
                act(root)
                finished = True
            except Crash:
                pass
        yield root, finished
        if finished:
            assert count > 5
            return
    raise AssertionError("it never ends")


def test_crash_while_writing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = set()
    for root, finished in every_crash(monkeypatch, tmp_path, lambda root: put(root, 30)):
        newest = good(root)[0]
        seen.add(newest)
        assert newest in (20, 30)
        assert newest == 30 or not finished
        put(root, 30)  # and the next attempt is not hindered by what is left
        assert good(root) == [30, 20, 10]
    assert seen == {20, 30}


def test_crash_while_writing_over_a_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The step is done again after a roll-back: the folder is there already, with other bytes."""
    for root, finished in every_crash(monkeypatch, tmp_path, lambda root: put(root, 20, "again")):
        newest = good(root)[0]
        assert newest in (10, 20)
        assert newest == 20 or not finished
        for rank in range(2):
            if newest == 20:  # one of the two, whole
                texts = {(root / checkpoint_name(20, 1) / part_file(r)).read_text().endswith("again") for r in range(2)}
                assert len(texts) == 1, rank


def test_crash_while_removing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for root, finished in every_crash(monkeypatch, tmp_path, lambda root: remove(root, [checkpoint_name(10, 1)])):
        assert good(root)[0] == 20
        torn = [c for c in scan(root, DIGEST) if c.problem]
        assert all(c.problem == "half-written (no manifest)" for c in torn)
        assert not (finished and (root / checkpoint_name(10, 1)).exists())
        remove(root, [checkpoint_name(10, 1)])  # and can be done again
        assert not (root / checkpoint_name(10, 1)).exists()


def test_a_failed_write_keeps_the_old_content_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "f", b"old")

    def full(_: Path, __: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_manifest_that_contradicts_the_folder_is_not_written(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, 7, 1)
    (folder / "rank-0.safetensors").write_bytes(b"12345")
    file = ManifestFile(name="rank-0.safetensors", size=5, xxh128="0" * 32)
    manifest = Manifest(job="j", view=1, step=7, epoch=0, state_digest=DIGEST, seconds=0, files=[file])
    with pytest.raises(ValueError, match="not the folder of step 8"):
        commit_manifest(folder, manifest.model_copy(update={"step": 8}))
    with pytest.raises(ValueError, match="has 5 bytes, the manifest says 6"):
        commit_manifest(folder, manifest.model_copy(update={"files": [file.model_copy(update={"size": 6})]}))
    with pytest.raises(FileNotFoundError):
        commit_manifest(
            folder, manifest.model_copy(update={"files": [file, file.model_copy(update={"name": "rank-1.safetensors"})]})
        )
    with pytest.raises(ValueError, match="without files"):
        commit_manifest(folder, manifest.model_copy(update={"files": []}))
    assert os.listdir(folder) == ["rank-0.safetensors"]
