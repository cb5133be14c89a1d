"""The file that a script appends its reports to."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmj_trainer.launch.progress import MOST_LINE, ReportError
from lmj_trainer.launch.progress_file import MOST_READ, ProgressFile


class Followed:
    """A file that is looked at when the test says so; ``lines`` and ``warnings`` are what it gave."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines, self.warnings = path, list[bytes](), list[str]()
        self.file = ProgressFile(path, self._take, self.warnings.append, poll_seconds=3600)

    def _take(self, line: bytes) -> None:
        if line == b"wrong":
            raise ReportError("no report")
        self.lines.append(line)

    def append(self, text: bytes) -> list[bytes]:
        """Append ``text`` and look; all lines so far."""
        with self.path.open("ab") as file:
            file.write(text)
        self.file.look()
        return self.lines


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path / "progress.jsonl")


async def test_only_what_is_appended_counts(followed: Followed) -> None:
    followed.path.write_bytes(b"old\nolder, without its e")
    async with followed.file:
        assert followed.append(b"nd\nnew\n\n") == [b"new"]
        assert followed.append(b"another\n") == [b"new", b"another"]


async def test_a_torn_line_waits_for_its_end_or_for_the_scripts(followed: Followed) -> None:
    async with followed.file:
        assert followed.append(b"on") == []
        assert followed.append(b"e\ntw") == [b"one"]
    assert followed.lines == [b"one", b"tw"]


async def test_a_file_that_is_truncated_begins_anew(followed: Followed) -> None:
    async with followed.file:
        followed.append(b"a long first line\ntor")
        followed.path.write_bytes(b"short\n")
        assert followed.append(b"") == [b"a long first line", b"short"]


async def test_a_file_that_is_moved_away_is_read_to_its_end_first(followed: Followed, tmp_path: Path) -> None:
    async with followed.file:
        followed.append(b"one\n")
        moved = followed.path.rename(tmp_path / "moved")
        moved.open("ab").write(b"two\nthree")
        followed.file.look()
        assert followed.append(b"four\n") == [b"one", b"two", b"three", b"four"]


async def test_of_very_much_the_end_is_read(followed: Followed) -> None:
    line = b"x" * 99
    async with followed.file:
        lines = list(followed.append((line + b"\n") * 10_000 + b"last\n"))
    assert lines[-1] == b"last"
    assert set(lines[:-1]) == {line}
    assert MOST_READ // 100 - 2 < len(lines) <= MOST_READ // 100 + 1


async def test_a_line_without_end_is_dropped(followed: Followed) -> None:
    async with followed.file:
        for _ in range(10):
            assert followed.append(b"x" * MOST_LINE) == []
            assert len(followed.file._torn) <= MOST_LINE
        assert followed.append(b"x\nnext\n") == [b"next"]


async def test_a_wrong_line_is_told_once_and_left_out(followed: Followed) -> None:
    async with followed.file:
        assert followed.append(b"wrong\ngood\nwrong\n") == [b"good"]
    assert followed.warnings == [f"command.progressFile: {followed.path} has a line that is left out: no report"]


@pytest.mark.parametrize("kind", ["pipe", "folder"])
async def test_what_is_no_file_is_told_and_stops_nobody(kind: str, followed: Followed) -> None:
    if kind == "pipe":
        os.mkfifo(followed.path)
    else:
        followed.path.mkdir()
    async with followed.file:
        followed.file.look()
    assert followed.warnings == [f"command.progressFile: {followed.path} is no file; name one that the script appends lines to"]


async def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    followed = Followed(tmp_path / "file" / "progress.jsonl")
    async with followed.file:
        followed.file.look()
    assert followed.warnings == [f"command.progressFile: {followed.path} cannot be read: Not a directory"]


async def test_it_looks_by_itself_and_leaves_nothing_open(tmp_path: Path) -> None:
    lines = list[bytes]()
    came = asyncio.Event()

    def take(line: bytes) -> None:
        lines.append(line)
        came.set()

    path = tmp_path / "progress.jsonl"
    open_before = len(os.listdir("/dev/fd"))
    async with ProgressFile(path, take, lambda _: None, poll_seconds=0.01):
        path.write_bytes(b"one\n")
        async with asyncio.timeout(30):
            await came.wait()
    assert lines == [b"one"]
    assert len(os.listdir("/dev/fd")) == open_before


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=12), max_size=12))
def test_however_it_is_written_the_lines_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    followed = Followed(tmp_path_factory.mktemp("followed") / "progress.jsonl")

    async def follow() -> None:
        async with followed.file:
            for part in parts:
                followed.append(part)

    asyncio.run(follow())
    assert followed.lines == [line for line in b"".join(parts).split(b"\n") if line.strip()]
