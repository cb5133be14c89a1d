"""``lmj logs``: what the ranks of a job on this machine wrote."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from lmj_operator.cli.options import SetOption

POLL_SECONDS = 0.2
_BLOCK = 1 << 16


def logs(
    target: Annotated[Path, typer.Argument(help="The job's file, or its output folder.", metavar="FILE|DIR")] = Path(),
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank's pods.")] = None,
    tail: Annotated[int, typer.Option("--tail", min=0, metavar="N", help="Lines of each log, from its end; 0 for all.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written, while the job runs.")] = False,
    sets: SetOption = None,
) -> None:
    """Print the logs of the ranks of FILE's job, or of the run in the output folder DIR, each line after the name of its pod."""
    from lmj_operator.backend.local.lock import lock_holder
    from lmj_operator.backend.local.store import RunStore
    from lmj_operator.cli.errors import FAILED, CommandError
    from lmj_operator.cli.place import layout_of

    layout = layout_of(target, list(sets or ()))
    readers: dict[Path, LogReader] = {}
    lock = RunStore(layout.run).lock_file
    while True:
        running = follow and lock_holder(lock) is not None
        for path in log_files(layout.logs, rank):
            if path not in readers:
                readers[path] = LogReader(path, tail)
            for line in readers[path].lines():
                typer.echo(f"{path.stem}: {line}")
        if not readers and not running:
            whose = "" if rank is None else f" of rank {rank}"
            raise CommandError(f"{layout.logs}: no log{whose} is here: no job has run, or into another folder", code=FAILED)
        if not running:
            return
        time.sleep(POLL_SECONDS)


def log_files(folder: Path, rank: int | None) -> list[Path]:
    """The logs in ``folder``, of all pods or of those made for ``rank``, oldest pods first."""
    from lmj_api.names import parse_pod_name

    found = []
    for path in folder.glob("*.log"):
        try:
            _, of, serial = parse_pod_name(path.stem)
        except ValueError:
            continue
        if rank is None or of == rank:
            found.append((serial, -1 if of is None else of, path))
    return [path for *_, path in sorted(found)]


class LogReader:
    """The last ``tail`` lines of a log that grows (0: all), then the lines that are added."""

    def __init__(self, path: Path, tail: int) -> None:
        self._file: BinaryIO = path.open("rb")
        self._rest = b""
        if tail:
            self._file.seek(_start_of(self._file, tail))

    def lines(self) -> Iterator[str]:
        """The whole lines that are there by now. What is at the end without a newline comes when it is one."""
        while block := self._file.read(_BLOCK):
            *whole, self._rest = (self._rest + block).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")


def _start_of(file: BinaryIO, lines: int) -> int:
    """Where the last ``lines`` lines of ``file`` begin."""
    place = file.seek(0, 2)
    ends = 0
    while place:
        begin = max(0, place - _BLOCK)
        file.seek(begin)
        block = file.read(place - begin)
        for at in range(len(block) - 1, -1, -1):
            if block[at] == 10:
                ends += 1
                if ends > lines:
                    return begin + at + 1
        place = begin
    return 0
