"""How far a copy is: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from lmj_operator.client.volume.transfer import Tally

SAY_SECONDS = 10.0
_UNITS = ("B", "kB", "MB", "GB", "TB")


def size_text(size: float) -> str:
    """``12.3 MB``."""
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} B"


def files_text(count: int) -> str:
    """``1 file``, ``2 files``."""
    return f"{count} file{'s' * (count != 1)}"


def summary(verb: str, tally: Tally, where: str, seconds: float) -> str:
    """The line that ends a copy."""
    parts = [f"{verb} {files_text(tally.sent)} ({size_text(tally.bytes_sent)}) {where} in {seconds:.1f} s"]
    parts += [f"{files_text(tally.there)} there already"] if tally.there else []
    parts += [f"{tally.links} link{'s' * (tally.links != 1)} left out"] if tally.links else []
    parts += [f"{tally.special} sockets, pipes or devices left out"] if tally.special else []
    return ", ".join(parts)


class PlainProgress:
    """Lines on stderr."""

    def __init__(self) -> None:
        self._files = self._size = self._done = self._moved = 0
        self._told = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def total(self, files: int, size: int) -> None:
        """As the protocol says."""
        self._files, self._size = files, size

    def moved(self, size: int) -> None:
        """As the protocol says."""
        self._moved += size
        if time.monotonic() - self._told > SAY_SECONDS:
            self._told = time.monotonic()
            self.say(f"{self._done} of {files_text(self._files)}, {size_text(self._moved)} of {size_text(self._size)}")

    def file(self) -> None:
        """As the protocol says."""
        self._done += 1

    def say(self, line: str) -> None:
        """As the protocol says."""
        print(line, file=sys.stderr, flush=True)


class BarProgress:
    """A bar on the terminal."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.BarColumn(bar_width=30),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[files]}"),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, files="waits for the pod")
        self._done = self._files = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def total(self, files: int, size: int) -> None:
        """As the protocol says."""
        self._files = files
        self._bar.update(self._task, total=size)

    def moved(self, size: int) -> None:
        """As the protocol says."""
        self._bar.update(self._task, advance=size, files=f"{self._done} of {files_text(self._files)}")

    def file(self) -> None:
        """As the protocol says."""
        self._done += 1
        self.moved(0)

    def say(self, line: str) -> None:
        """As the protocol says."""
        self._bar.console.print(line, markup=False)


def progress() -> PlainProgress | BarProgress:
    """The one for where this process writes."""
    return BarProgress() if sys.stderr.isatty() else PlainProgress()
