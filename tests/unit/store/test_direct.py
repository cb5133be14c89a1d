"""Large files are written past the page cache, in whole blocks, and have the same content where that cannot be done."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from lmj_trainer.store import direct
from lmj_trainer.store.direct import write_pieces

ROOM = direct._ROOM
SIZES = [(), (0, 1, 7), (ROOM,), (8, ROOM - 8), (3, ROOM, 5), (1000, 2 * ROOM + 4097, 0, 12345), (ROOM // 3,) * 7]


def pieces(sizes: Sequence[int]) -> list[bytes]:
    return [random.Random(size).randbytes(size) for size in sizes]


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Of each write: whether it went past the cache, and its bytes."""
    written: list[tuple[bool, int]] = []
    real = direct.write_all

    def write_all(file: IO[bytes], content: memoryview) -> None:
        written.append((bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT), len(content)))
        real(file, content)

    monkeypatch.setattr(direct, "write_all", write_all)
    return written


@pytest.mark.parametrize("sizes", SIZES)
def test_all_pieces_are_in_the_file_in_order(tmp_path: Path, sizes: Sequence[int], past: list[tuple[bool, int]]) -> None:
    content, file = pieces(sizes), tmp_path / "f"
    write_pieces(file, map(memoryview, content))
    assert file.read_bytes() == b"".join(content)
    whole, rest = divmod(sum(sizes), ROOM)
    assert past == [(True, ROOM)] * whole + [(False, rest)]


def test_a_file_that_was_there_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"longer than what comes")
    write_pieces(file, [b"short"])
    assert file.read_bytes() == b"short"


@pytest.mark.parametrize("sizes", SIZES)
def test_a_file_system_that_cannot(tmp_path: Path, sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def refuse(file: Any, what: int, flags: int = 0) -> int:
        if what == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(file, what, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    content = pieces(sizes)
    write_pieces(tmp_path / "f", content)
    assert (tmp_path / "f").read_bytes() == b"".join(content)


def test_a_write_that_ends_within_a_block_goes_on_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = direct.write_all

    def torn(file: IO[bytes], content: memoryview) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            real(file, content[:8192])
            raise OSError(errno.EINVAL, "Invalid argument")
        real(file, content)

    monkeypatch.setattr(direct, "write_all", torn)
    content = pieces([100, 2 * ROOM, 9])
    write_pieces(tmp_path / "f", content)
    assert (tmp_path / "f").read_bytes() == b"".join(content)


def test_a_disk_that_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: IO[bytes], content: memoryview) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(direct, "write_all", full)
    with pytest.raises(OSError, match="No space"):
        write_pieces(tmp_path / "f", pieces([ROOM]))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device without room is Linux's")
@pytest.mark.parametrize("sizes", [(9,), (ROOM,), (ROOM, 9)])
def test_a_real_device_without_room_is_told(sizes: Sequence[int]) -> None:
    """Its error, and none of what is put in order behind it: the traceback of an error holds on to what was being written."""
    with pytest.raises(OSError, match="No space left on device"):
        write_pieces(Path("/dev/full"), pieces(sizes))
