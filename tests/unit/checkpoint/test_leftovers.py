"""What views that are over left by half: it goes, and nothing else does."""

import os
from pathlib import Path

import pytest
from tests.on_disk import clear, commit_manifest, file_digest, make_folder, remove, scan, sign

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.names import part_file
from lmj_api.run import Run
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.durable import write_atomically
from lmj_trainer.store import posix

RUN, EARLIER, LATER = (
    Run(id=f"{digit * 8}-0000-4000-8000-000000000000", begun=begun) for digit, begun in (("b", 2.0), ("a", 1.5), ("c", 3.25))
)
OWNER = Owner("j", "d", RUN)


def half(root: Path, step: int, view: int, owner: Owner | None = OWNER) -> Path:
    folder = make_folder(root, step, view, owner.run if owner is not None else None)
    if owner is not None:
        sign(folder, owner)
    write_atomically(folder / part_file(0), f"{step} {view}".encode())
    (folder / ".rank-1.safetensors.77.partial").write_bytes(b"torn")
    return folder


def finish(folder: Path, step: int, view: int) -> None:
    path = folder / part_file(0)
    file = ManifestFile(name=path.name, size=path.stat().st_size, xxh128=file_digest(path))
    commit_manifest(folder, Manifest(job="j", run=RUN, view=view, step=step, epoch=0, state_digest="d", seconds=0, files=[file]))


def test_older_views_halves_of_this_job_go_and_nothing_else_does(tmp_path: Path) -> None:
    for step, view in ((10, 1), (20, 2)):
        half(tmp_path, step, view)
    finish(half(tmp_path, 15, 1), 15, 1)
    half(tmp_path, 30, 3)  # being written
    half(tmp_path, 30, 4)  # this view is over, and does not know it
    half(tmp_path, 12, 1, Owner("another", "d", RUN))
    half(tmp_path, 16, 1, Owner("j", "another", EARLIER))
    half(tmp_path, 17, 1, Owner("j", "d", LATER))
    half(tmp_path, 13, 1, None)
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-000000014-v1").write_text("a file")
    (tmp_path / "step-000000011-v1").symlink_to(tmp_path / "step-000000030-v3")
    before = set(os.listdir(tmp_path))
    gone = {"step-000000010-v1-bbbbbbbb", "step-000000020-v2-bbbbbbbb"}
    assert set(clear(tmp_path, 3, OWNER)) == gone
    assert set(os.listdir(tmp_path)) == before - gone
    assert clear(tmp_path, 3, OWNER) == []
    assert clear(tmp_path / "none", 3, OWNER) == []


def test_what_earlier_runs_of_the_job_left_by_half_goes_whatever_their_views_were(tmp_path: Path) -> None:
    """They are over: a job of a name is made when the one before it is deleted."""
    left = [half(tmp_path, 20, 9, Owner("j", "d", EARLIER)), half(tmp_path, 10, 2, Owner("j", "d"))]
    assert [(folder / ".owner").read_text() for folder in left] == [f"j d {EARLIER.id} 1.5", "j d"]
    finish(half(tmp_path, 15, 1), 15, 1)
    assert sorted(clear(tmp_path, 1, OWNER)) == ["step-000000010-v2", "step-000000020-v9-aaaaaaaa"]
    assert [c.step for c in scan(tmp_path, "d")] == [15]


@pytest.mark.parametrize("line", ["", "j", "j d e", "j d not-a-run 1", f"j d {RUN.id} soon", f"j d {RUN.id} nan", "j d a b c"])
def test_what_is_no_owner_is_nobodys_litter(tmp_path: Path, line: str) -> None:
    folder = half(tmp_path, 10, 1)
    (folder / ".owner").write_text(line)
    assert clear(tmp_path, 9, OWNER) == []


def test_what_is_written_there_late_makes_no_checkpoint_and_goes_the_next_time(tmp_path: Path) -> None:
    folder = half(tmp_path, 10, 1)
    assert clear(tmp_path, 2, OWNER) == [folder.name]
    with pytest.raises(FileNotFoundError):
        finish(folder, 10, 1)
    half(tmp_path, 10, 1)
    assert [found.problem for found in scan(tmp_path, "d")] == ["half-written (no manifest)"]
    assert clear(tmp_path, 2, OWNER) == [folder.name]
    assert os.listdir(tmp_path) == []


def test_one_that_is_finished_in_this_very_moment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = half(tmp_path, 10, 1)
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        if source == folder:
            finish(folder, 10, 1)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    assert clear(tmp_path, 2, OWNER) == []
    [found] = scan(tmp_path, "d")
    assert (found.name, found.problem) == (folder.name, None)


@pytest.mark.parametrize("survives", [0, 1, 2])
def test_a_removal_that_is_torn_is_finished_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: int) -> None:
    half(tmp_path, 10, 1)
    left, real = survives, os.unlink

    def unlink(path: Path) -> None:
        nonlocal left
        if left == 0:
            raise OSError("killed here")
        left -= 1
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(OSError, match="killed here"):
        clear(tmp_path, 2, OWNER)
    monkeypatch.undo()
    assert scan(tmp_path, "d") == []
    half(tmp_path, 10, 1)  # and somebody writes there again
    assert clear(tmp_path, 2, OWNER) == ["step-000000010-v1-bbbbbbbb"] * 2
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("survives", range(5))
def test_a_removal_of_a_whole_one_that_is_torn_is_finished_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    """The power goes before each operation: it stands, whole, or it is known whose it was until nothing of it is left."""
    folder = half(tmp_path, 10, 1)
    finish(folder, 10, 1)
    left, durable = survives, set(os.listdir(folder))

    def unlink(path: Path) -> None:
        nonlocal left
        assert Path(path).name != ".owner" or durable == {".owner"}, "it goes when it is durable that all else is gone"
        if left == 0:
            raise OSError("killed here")
        left -= 1
        real(path)

    def sync(path: Path) -> None:
        nonlocal durable
        durable = set(os.listdir(path)) if path == folder else durable
        synced(path)

    real, synced = os.unlink, posix.sync_folder
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        patch.setattr(posix, "sync_folder", sync)
        if survives < 4:
            with pytest.raises(OSError, match="killed here"):
                remove(tmp_path, [folder.name])
        else:
            remove(tmp_path, [folder.name])
    problem = [[None], *[["half-written (no manifest)"]] * 3, []][survives]
    assert [found.problem for found in scan(tmp_path, "d")] == problem
    assert clear(tmp_path, 2, OWNER) == ([folder.name] if 0 < survives < 4 else [])
    assert os.listdir(tmp_path) == ([folder.name] if survives == 0 else [])


def test_a_folder_of_an_older_view_in_which_nothing_lies_goes(tmp_path: Path) -> None:
    for name in ("step-000000010-v1", "step-000000020-v3", "step-000000030-v1"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-000000030-v1" / "mine").mkdir()
    assert clear(tmp_path, 3, OWNER) == []
    assert sorted(os.listdir(tmp_path)) == ["step-000000020-v3", "step-000000030-v1"]


def test_what_is_unfinished_goes_from_a_checkpoint_that_stays_when_it_is_old(tmp_path: Path) -> None:
    folder = half(tmp_path, 15, 1)
    finish(folder, 15, 1)
    old, young = (folder / f".rank-1.safetensors.{number:016x}.partial" for number in range(2))
    for path in (old, young):
        path.write_bytes(b"torn")
    os.utime(old, (0, 0))
    clear(tmp_path, 3, OWNER)
    assert (old.exists(), young.exists()) == (False, True)
