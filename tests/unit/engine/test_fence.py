"""Who may write into a shared folder: any order of looking, sleeping and claiming ends with the newest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lmj_api.run import Run
from lmj_trainer.errors import UserError
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker import fence as fence_module
from lmj_trainer.worker.claims import FolderClaims
from lmj_trainer.worker.fence import Claim, Fence


def run(number: int, begun: float = 1.0) -> Run:
    return Run(id=f"{number:08x}-0000-4000-8000-000000000000", begun=begun)


def fence(folder: Path, view: int, of: Run | None = None, pod: str = "a") -> Fence:
    return Fence(FolderClaims(folder), Claim(run=of or run(1), view=view, pod=pod))


def test_the_newest_view_holds_whoever_comes_last(tmp_path: Path) -> None:
    old, new = fence(tmp_path, 1), fence(tmp_path, 2)
    old.hold()
    old.hold()
    new.hold()
    for _ in range(2):
        with pytest.raises(ViewBrokenError, match="view 2 has begun, in a"):
            old.hold()
        new.hold()
    with pytest.raises(ViewBrokenError):
        fence(tmp_path, 1).hold()
    new.hold()
    assert len(os.listdir(tmp_path)) == 1


def test_a_later_run_holds_whatever_its_view(tmp_path: Path) -> None:
    old, new = fence(tmp_path, 9, run(7)), fence(tmp_path, 1, run(2, begun=2.0))
    old.hold()
    new.hold()
    with pytest.raises(UserError, match=r"a later run writes there \(00000002-.* or remove .* if that run is gone"):
        old.hold()
    new.hold()


def test_of_two_runs_of_one_second_the_last_to_come_holds(tmp_path: Path) -> None:
    first, second = fence(tmp_path, 9, run(7)), fence(tmp_path, 1, run(2))
    first.hold()
    second.hold()
    second.hold()
    first.hold()


class Sleep:
    """The ``nth`` call of ``name`` sleeps, before it is done or ``behind`` it, and ``come`` is called meanwhile."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, nth: int, behind: bool, come: Callable[[], None]) -> None:
        self._real, self._left, self._behind, self._come = getattr(os, name), nth, behind, come
        patch.setattr(os, name, self._call)

    def _call(self, *arguments: object, **options: object) -> object:
        mine = self._left == 0
        self._left -= 1
        if mine and not self._behind:
            self._come()
        result = self._real(*arguments, **options)
        if mine and self._behind:
            self._come()
        return result


@pytest.mark.parametrize("name", ["listdir", "open", "unlink"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("nth", range(6))
@pytest.mark.parametrize("others", [(2,), (2, 3), (2, 3, 4)])
def test_an_older_one_sleeps_while_it_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, behind: bool, nth: int, others: tuple[int, ...]
) -> None:
    """Before or behind each call of the system: meanwhile newer ones come, and it never holds behind them."""
    old = fence(tmp_path, 1)
    newer = [fence(tmp_path, view) for view in others]
    came: list[Fence] = []

    def come() -> None:
        for one in newer:
            one.hold()
            came.append(one)

    monkeypatch.setattr(fence_module, "_TORN_SECONDS", 0.1)
    with monkeypatch.context() as patch:
        Sleep(patch, name, nth, behind, come)
        with contextlib.suppress(ViewBrokenError):
            for _ in range(3):
                old.hold()
    if not came:
        come()
    newest = max(int(path.name) for path in tmp_path.iterdir())
    assert Claim.model_validate_json((tmp_path / str(newest)).read_bytes()).view == others[-1], (
        "nothing is put above it, or over it"
    )
    newer[-1].hold()
    with pytest.raises(ViewBrokenError, match=f"view {others[-1]} has begun"):
        old.hold()
    newer[-1].hold()


def test_one_whose_claim_could_not_be_removed_is_kept_out_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    old, new = fence(tmp_path, 1), fence(tmp_path, 2)
    old.hold()
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        new.hold()
    assert len(os.listdir(tmp_path)) == 2
    with pytest.raises(ViewBrokenError):
        old.hold()
    new.hold()


def test_a_claim_that_was_removed_by_hand_is_made_again(tmp_path: Path) -> None:
    mine = fence(tmp_path / "f", 2)
    mine.hold()
    for path in (tmp_path / "f").iterdir():
        path.unlink()
    mine.hold()
    assert len(os.listdir(tmp_path / "f")) == 1
    with pytest.raises(ViewBrokenError):
        fence(tmp_path / "f", 1).hold()


@pytest.mark.parametrize("content", [b"", b"{", b"7", b"\xff", b"[" * 100_000, b'{"run": {"id": "x"}, "view": 9, "pod": "a"}'])
def test_what_is_no_claim_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(fence_module, "_TORN_SECONDS", 0.1)
    (tmp_path / "1").write_bytes(content)
    for name in ("x", "-3", "9" * 200, "\u0663"):
        (tmp_path / name).touch()
    fence(tmp_path, 1).hold()
    assert not (tmp_path / "1").exists()


def test_a_claim_is_compared_by_what_is_in_it(tmp_path: Path) -> None:
    """Not by its name, its number or its times, which may be as old as a cache, or another's by now."""
    mine = fence(tmp_path, 1)
    mine.hold()
    [path] = tmp_path.iterdir()
    found = path.stat()
    path.write_text(Claim(run=run(1), view=2, pod="b").to_json())
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(ViewBrokenError, match="view 2 has begun, in b"):
        mine.hold()
