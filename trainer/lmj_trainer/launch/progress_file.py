"""Follows the file that a script appends its reports to (``command.progressFile``)."""

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Self

from lmj_trainer.launch.progress import MOST_LINE, ReportError

POLL_SECONDS = 1.0
MOST_READ = 1 << 18
"""Bytes that one look reads: of more, the end, because the newest report counts."""


class ProgressFile:
    """Looks once a second while it is entered, and gives whole lines to ``take``, several at a time.

    Only what is appended from then on is read. The file need not exist yet; it may be truncated, or moved away and begun anew. A last line
    without its end waits for it; when this is left it counts as it is.
    """

    def __init__(
        self, path: Path, take: Callable[[bytes], None], warn: Callable[[str], None], *, poll_seconds: float = POLL_SECONDS
    ) -> None:
        """``take``: takes one line, and raises ReportError if it is no report. ``warn``: gets one line when something is wrong, once."""
        self._path, self._take, self._warn, self._poll = path, take, warn, poll_seconds
        self._fd: int | None = None
        self._offset = 0
        self._torn = b""
        self._skipping = False
        """The rest of a line, whose begin was not read, is dropped."""
        self._warned = False

    async def __aenter__(self) -> Self:
        self._open(at_end=True)
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.look()
        self._lines([self._torn])
        self._close()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._poll)
            self.look()

    def look(self) -> None:
        """Read what was appended since the last look."""
        if self._fd is not None:
            self._read(self._fd)
            if not self._replaced(self._fd):
                return
            self._lines([self._torn])
            self._close()
        self._open(at_end=False)
        if self._fd is not None:
            self._read(self._fd)

    def _open(self, at_end: bool) -> None:
        try:
            # A pipe of that name must not stop the launcher.
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            self._complain(f"cannot be read: {error.strerror}")
            return
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            self._complain("is no file; name one that the script appends lines to")
            return
        self._fd, self._offset = fd, status.st_size if at_end else 0
        # The file may end within a line: what follows is no line of its own.
        self._skipping = at_end and self._offset > 0 and os.pread(fd, 1, self._offset - 1) != b"\n"

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._torn = None, b""

    def _replaced(self, fd: int) -> bool:
        """Whether the path leads to another file now; open as the old one is, none has its inode."""
        try:
            now = os.stat(self._path)
        except OSError:
            return False  # moved away; whoever did so may still append to it
        then = os.fstat(fd)
        return (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino)

    def _read(self, fd: int) -> None:
        try:
            size = os.fstat(fd).st_size
            if size < self._offset:
                self._offset, self._torn, self._skipping = 0, b"", False
            if size - self._offset > MOST_READ:
                self._offset, self._torn, self._skipping = size - MOST_READ, b"", True
            new = os.pread(fd, size - self._offset, self._offset)
        except OSError as error:
            self._complain(f"cannot be read: {error.strerror}")
            return
        self._offset += len(new)
        *lines, torn = (self._torn + new).split(b"\n")
        if self._skipping and lines:
            del lines[0]
            self._skipping = False
        self._torn = b"" if self._skipping else torn
        if len(self._torn) > MOST_LINE:
            self._torn, self._skipping = b"", True
        self._lines(lines)

    def _lines(self, lines: list[bytes]) -> None:
        for line in lines:
            if not line.strip():
                continue
            try:
                self._take(line)
            except ReportError as error:
                self._complain(f"has a line that is left out: {error}")

    def _complain(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"command.progressFile: {self._path} {what}")
