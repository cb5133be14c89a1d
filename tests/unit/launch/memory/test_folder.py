"""Snapshots in memory: whole or not there, whenever their processes are killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lmj_trainer.launch.memory import folder as memory
from lmj_trainer.launch.memory.folder import NoRoomError, begin, forget, read, snapshots

OPERATIONS = ("open", "replace", "unlink", "rmdir", "mkdir", "scandir")
OWN = r"rng.*"


class Killed(BaseException):
    """Here the process is."""


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """From the ``count``-th operation on (from 0) nothing is done any more; files are torn in their middle."""
    done = 0

    def step() -> None:
        nonlocal done
        if done >= count:
            raise Killed
        done += 1

    def wrap(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            step()
            return real(*args, **kwargs)

        return call

    real_write = Path.write_text

    def torn(path: Path, text: str) -> int:
        step()
        real_write(path, text[: len(text) // 2])
        step()
        return real_write(path, text)

    with monkeypatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, wrap(getattr(os, name)))
        patch.setattr(Path, "write_text", torn)
        yield


def put(root: Path, step: int, view: int = 1, parts: int = 2, only: int | None = None, text: str = "") -> None:
    for part in range(parts):
        if only in (None, part):
            writing = begin(root, step, view, part=part, parts=parts, world=parts)
            if part == 0:
                (writing.site / "model").write_text(f"{step} {view} {text}")
                (writing.site / "sub").mkdir()
                (writing.site / "sub" / "more").write_text(f"{step}")
            (writing.site / f"rng-{part}").write_text(f"{step} {part}")
            writing.own(part, OWN)
            writing.complete()


def steps(root: Path) -> list[tuple[int, int]]:
    return [(found.step, found.view) for found in snapshots(root)]


def test_two_are_kept_and_the_newest_is_first(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        put(tmp_path, step)
    assert steps(tmp_path) == [(20, 1), (15, 1)]
    assert sorted(os.listdir(tmp_path)) == ["step-15-view-1", "step-20-view-1"]
    [newest, _] = snapshots(tmp_path)
    assert {file.name: file.rank for file in newest.files} == {"model": None, "sub/more": None, "rng-0": 0, "rng-1": 1}
    assert newest.size == sum(len((newest.path / file.name).read_bytes()) for file in newest.files)
    assert newest.world == 2


def test_a_snapshot_is_complete_with_its_last_part(tmp_path: Path) -> None:
    put(tmp_path, 5, only=0)
    assert steps(tmp_path) == []
    put(tmp_path, 5, only=1)
    assert steps(tmp_path) == [(5, 1)]


def test_a_file_of_another_size_or_none_is_no_snapshot(tmp_path: Path) -> None:
    put(tmp_path, 5)
    path = tmp_path / "step-5-view-1"
    assert read(path) is not None
    (path / "model").write_text("short")
    assert read(path) is None
    (path / "model").unlink()
    assert read(path) is None


def test_a_later_view_is_newer_than_a_greater_step(tmp_path: Path) -> None:
    put(tmp_path, 20, view=1)
    put(tmp_path, 10, view=2)
    assert steps(tmp_path) == [(10, 2), (20, 1)]


def test_what_nobody_goes_on_from_is_forgotten(tmp_path: Path) -> None:
    put(tmp_path, 10)
    put(tmp_path, 20)
    forget(tmp_path, 2, tmp_path / "step-10-view-1")
    assert steps(tmp_path) == [(10, 1)]
    put(tmp_path, 15, view=2)
    forget(tmp_path, 3, None)  # processes that go on from elsewhere: what is there may be needed again before they have one
    assert steps(tmp_path) == [(15, 2), (10, 1)]
    put(tmp_path, 5, view=3)
    assert steps(tmp_path) == [(5, 3), (15, 2)]
    forget(tmp_path, 3, tmp_path / "step-15-view-2")  # another process of the view, which begins later
    assert steps(tmp_path) == [(5, 3), (15, 2)]


def test_a_list_that_is_none_is_no_snapshot(tmp_path: Path) -> None:
    put(tmp_path, 5)
    for text in ("", "[]", "{}", '{"parts": 1, "world": "x", "files": []}', '{"parts": 1, "world": 1, "files": [1]}'):
        (tmp_path / "step-5-view-1" / "part-0.json").write_text(text)
        assert steps(tmp_path) == []


@pytest.mark.parametrize("name", ["../rng", "/rng", "a/rng", ".rng"])
def test_what_another_rank_gives_goes_into_the_folder(tmp_path: Path, name: str) -> None:
    writing = begin(tmp_path, 5, 1, world=2)
    with pytest.raises(ValueError, match="rank 1 calls a file"):
        writing.add(1, {name: b"r"})


def test_no_room_is_said_and_the_one_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 5)
    monkeypatch.setattr(memory, "room", lambda _: 100 << 20)
    with pytest.raises(NoRoomError, match="has room for 100 MiB, and it needs 216 MiB"):
        begin(tmp_path, 10, 1, size=200 << 20)
    assert steps(tmp_path) == [(5, 1)]


def test_room_is_what_the_control_group_leaves(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 200\n")
    assert memory._left_in_group(tmp_path) == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._left_in_group(tmp_path) is None
    assert memory._left_in_group(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("act", "before", "after"),
    [
        (lambda root: put(root, 15), [(10, 1), (5, 1)], [(15, 1), (10, 1)]),
        (lambda root: put(root, 10, text="again"), [(10, 1), (5, 1)], [(10, 1), (5, 1)]),
        (lambda root: forget(root, 2, root / "step-5-view-1"), [(10, 1), (5, 1)], [(5, 1)]),
    ],
)
def test_a_kill_between_any_two_operations(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Path], None],
    before: list[tuple[int, int]],
    after: list[tuple[int, int]],
) -> None:
    """One is there at any instant, with what was written as it; and what is left behind hinders nobody."""
    for count in range(1000):
        root = tmp_path / str(count)
        put(root, 5)
        put(root, 10)
        finished = False
        try:
            with killed_at(monkeypatch, count):
                act(root)
                finished = True
        except Killed:
            pass
        found = steps(root)
        assert found[0] in (before[0], before[-1], after[0])
        for snapshot in snapshots(root):
            assert (snapshot.path / "sub" / "more").read_text() == str(snapshot.step)
        if finished:
            assert found == after
            assert count > 5
            return
        act(root)
        assert steps(root)[0] == after[0]
        put(root, 30, view=3)
        put(root, 35, view=3)
        assert steps(root) == [(35, 3), (30, 3)]
        assert sorted(os.listdir(root)) == ["step-30-view-3", "step-35-view-3"]
        shutil.rmtree(root)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("given", [(), (2,), (2, 3)])
def test_a_snapshot_is_whole_when_it_has_what_each_rank_of_the_job_has_alone(tmp_path: Path, given: tuple[int, ...]) -> None:
    for part in (0, 1):
        writing = begin(tmp_path, 5, 1, part=part, parts=2, world=4)
        (writing.site / "model").write_text("5")
        (writing.site / f"rng-{part}").write_text("r")
        assert writing.own(part, OWN) == {f"rng-{part}": b"r"}
        if part == 1:
            for rank in given:
                writing.add(rank, {f"rng-{rank}": b"of another node"})
        writing.complete()
    [found] = snapshots(tmp_path)
    assert found.whole is (given == (2, 3))
    assert {file.rank for file in found.files} == {None, 0, 1, *given}
    assert all((found.path / f"rng-{rank}").read_bytes() == b"of another node" for rank in given)
