"""What every store must do, run against each adapter."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path

import pytest
import torch
from bucket_fixture import KINDS
from tests.unit.engine.small_job import Line, elsewhere, losses, make, small_job, start, view, weights
from tests.unit.store.memory import MemoryStore

from lmj_api.names import checkpoint_name
from lmj_api.protocol import EventKind, WorkerPhase
from lmj_api.view import Resume
from lmj_trainer.checkpoint.scan import survey
from lmj_trainer.errors import UserError
from lmj_trainer.store.port import NotAFileError, Ref
from lmj_trainer.store.posix import folder
from lmj_trainer.store.registry import STORES, open_place

CLOUD = "LMJ_TEST_PLACE"
"""The variable with a folder in a bucket of a real cloud, where the tests may write one. Unset: that is not tested."""


@pytest.fixture(
    params=[
        "memory",
        "posix",
        *(pytest.param(kind, marks=pytest.mark.integration) for kind in KINDS),
        *(pytest.param("cloud", marks=pytest.mark.integration) for name in (CLOUD,) if name in os.environ),
    ]
)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Ref:
    if request.param == "cloud":
        return open_place(f"{os.environ[CLOUD]}/{uuid.uuid4()}")
    if request.param in KINDS:
        return open_place(f"{request.getfixturevalue(request.param).bucket('contract')}/{tmp_path.name}")
    return folder(tmp_path / "root") if request.param == "posix" else Ref(MemoryStore())


def test_what_is_put_is_there_as_a_whole_and_in_ranges(root: Ref) -> None:
    file = root / "a" / "b"
    file.put([b"01234", memoryview(b"567"), b""])
    assert (file.get(), file.get(2, 3), file.get(6, 100), file.get(8), file.get(100, 1)) == (b"01234567", b"234", b"67", b"", b"")
    buffer = bytearray(b"........")
    view = memoryview(buffer)
    file.fill(2, [view[5:7], view[0:0], view[1:5]])
    assert buffer == b".456723."
    file.fill(8, [])
    for begin in (3, 8, 100):
        with pytest.raises(OSError, match="b"):
            file.fill(begin, [memoryview(bytearray(4)), memoryview(bytearray(2))])
    entry = file.entry()
    assert entry.size == 8
    assert abs(entry.time - time.time()) < 60
    assert (file.exists(), (root / "a" / "c").exists()) == (True, False)


def test_put_replaces_and_a_failure_keeps_what_was_there(root: Ref) -> None:
    file = root / "f"
    file.put([b"old"])
    first = file.entry().tag
    file.put([b"older"])
    assert not first or file.entry().tag != first
    assert file.get() == b"older"

    def torn() -> object:
        yield b"new"
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        file.put(torn())  # type: ignore[arg-type]
    assert (file.get(), root.files()) == (b"older", ["f"])


def test_one_of_many_creates(root: Ref) -> None:
    made: list[int] = []
    barrier = threading.Barrier(4)

    def create(number: int) -> None:
        barrier.wait(20)
        if (root / "folder" / "owner").create(str(number).encode()):
            made.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [str(number).encode() for number in made] == [(root / "folder" / "owner").get()]
    assert not (root / "folder" / "owner").create(b"late")


def test_a_key_that_is_not_there(root: Ref) -> None:
    nothing = root / "nothing"
    for call in (nothing.get, nothing.entry, nothing.files, nothing.folders):
        with pytest.raises(FileNotFoundError):
            call()
    nothing.delete()
    nothing.remove()
    assert not nothing.is_folder()


def test_files_and_folders_are_listed_apart(root: Ref) -> None:
    for key in ("one", "two"):
        (root / key).put([b"x"])
    (root / "deep" / "er" / "file").put([b"x"])
    assert (root.files(), root.folders()) == (["one", "two"], ["deep"])
    assert ((root / "deep").files(), (root / "deep").folders()) == ([], ["er"])
    assert ((root / "deep").is_folder(), root.is_folder(), (root / "one").is_folder()) == (True, True, False)


def test_a_folder_goes_when_its_files_have(root: Ref) -> None:
    place = root / "folder"
    for name in ("a", "b"):
        (place / name).put([b"x"])
    with pytest.raises(OSError, match=r".+"):
        place.remove()
    for name in place.files():
        (place / name).delete()
    place.remove()
    assert not place.is_folder()


def test_a_folder_that_was_withdrawn_is_completed_by_nobody(root: Ref) -> None:
    place = root / "step-1"
    (place / "part").put([b"x"])
    aside = place.withdraw("manifest")
    assert aside is not None
    (place / "manifest").put([b"late"])
    assert (place / "part").exists() is False, "what is completed late has no parts"
    assert aside.files() == ["part"]


def test_a_folder_that_is_complete_is_not_withdrawn(root: Ref) -> None:
    place = root / "step-1"
    (place / "part").put([b"x"])
    (place / "manifest").put([b"x"])
    assert place.withdraw("manifest") is None
    assert place.files() == ["manifest", "part"]


def test_a_file_is_read_as_one_of_this_machine(root: Ref) -> None:
    (root / "f").put([b"content"])
    with (root / "f").local() as path:
        assert path.read_bytes() == b"content"


def test_names_are_those_of_places(root: Ref) -> None:
    place = root / "a" / "b"
    assert (place.name, place.parent.name, str(place).endswith("a/b")) == ("b", "a", True)


def test_links_are_no_files_and_no_folders(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").symlink_to(tmp_path / "real" / "f")
    root = folder(tmp_path)
    assert (root.folders(), (root / "link").is_folder()) == (["real"], False)
    for name in ("link", "file", "real"):
        with pytest.raises(NotAFileError):
            (root / name).entry()
        assert (root / name).exists()


def test_a_scheme_that_nobody_knows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^ftp://b/x: ftp:// is not known here: use a path, s3://, azblob://, gs://, azfile://$"):
        open_place("ftp://b/x")
    monkeypatch.setitem(STORES, "memory", lambda place: Ref(MemoryStore()))
    with pytest.raises(UserError, match=r"use a path, s3://, azblob://, gs://, azfile://, memory://$"):
        open_place("ftp://b/x")
    assert str(open_place("/tmp/x") / "y") == "/tmp/x/y"


@pytest.mark.integration
def test_a_job_trains_into_any_store_and_goes_on_from_it(root: Ref, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is a class and a line in the registry: nothing else knows which it is."""
    job = small_job(tmp_path)
    whole = elsewhere(job, tmp_path / "whole")
    make(whole, Line()).run(view(1, start()))
    monkeypatch.setitem(STORES, "", lambda place: root)
    line = Line()
    line.on = lambda kind, details: line.draining.set() if kind is EventKind.COMMITTED and details["progress"].step == 5 else None
    assert make(job, line).run(view(1, start())) is WorkerPhase.DRAINED
    left = next(found.info for found in survey(root, None) if found.info.problem is None)
    assert left.step in (5, 6)
    assert not (Path(job.spec.output.path) / "checkpoints").exists()
    resume = Resume(step=left.step, checkpoint=checkpoint_name(left.step, 1))
    assert make(job, Line()).run(view(2, resume)) is WorkerPhase.COMPLETED
    assert losses(job) == losses(whole)
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(job).items())
