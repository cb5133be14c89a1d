"""A process of the cluster: started into its own session, known by pid and start time, so that no other is ever ended by mistake."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cluster.errors import ClusterError

T = TypeVar("T")


def say(line: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"cluster: {line}\n")
    sys.stderr.flush()


def wait_until(what: str, probe: Callable[[], T | None], seconds: float, log: Path | None = None, every: float = 0.1) -> T:
    """What ``probe`` returns once it is true; says what it waits for every 10 s. Raises ClusterError with the log's tail at the deadline."""
    start = time.monotonic()
    said = start
    while True:
        found = probe()
        if found:
            return found
        now = time.monotonic()
        if now - start > seconds:
            raise ClusterError(f"{what}: not within {seconds:g} s{tail(log)}")
        if now - said > 10:
            say(f"waiting for {what} ({now - start:.0f} s)")
            said = now
        time.sleep(every)


def tail(log: Path | None, lines: int = 15) -> str:
    """The last lines of ``log`` as they go into a message; empty when there is no log."""
    if log is None or not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16384))
        text = file.read().decode(errors="replace")
    return "\n".join([f"\n  {log}:", *(f"    {line[:300]}" for line in text.splitlines()[-lines:])])


def started_at(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot; None when it is gone or a zombie.

    The first thread of a process that was killed may be a zombie while others still hold its port: that is living.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" and threads == 1 else int(fields[19])


def child_of(pid: int) -> int | None:
    """The first child of a process, None while it has none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(children[0]) if children else None


def remains(first: int) -> str:
    """Process ``first``, and its descendants, each with its state and what it waits for in the kernel: for a message."""
    lines = []
    for pid in (first, *_descendants(first)):
        try:
            folder = Path(f"/proc/{pid}")
            name, _, fields = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            stack = [line.split()[-1].partition("+")[0] for line in (folder / "stack").read_text().splitlines()]
            lines.append(f"  {pid} {name} {fields.split()[0]}, parent {fields.split()[1]}: {' < '.join(stack[:12])}")
        except OSError as error:
            lines.append(f"  {pid}: {error.strerror}")
    return "\n".join(lines)


def _descendants(pid: int) -> list[int]:
    children = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        children += [int(word) for word in tasks.read_text().split()]
    return [each for child in children for each in (child, *_descendants(child))]


@dataclass(frozen=True)
class Process:
    """A named process; its identity is in ``folder``/NAME.pid, its output in ``folder``/NAME.log, so that any later command finds it."""

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def pidfile(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def pid(self) -> int | None:
        """The pid while the very process that was started lives, else None."""
        try:
            pid, start = (int(word) for word in self.pidfile.read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return pid if started_at(pid) == start else None

    def start(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> int:
        """Start ``command`` unless it runs already; returns the pid."""
        running = self.pid()
        if running is not None:
            return running
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        self.pidfile.write_text(f"{process.pid} {started_at(process.pid) or 0}")
        return process.pid

    def stop(self, with_signal: signal.Signals = signal.SIGKILL, seconds: float = 15) -> None:
        """End it and wait until it is gone. No error when it is gone already."""
        pid = self.pid()
        if pid is not None:
            os.kill(pid, with_signal)
            wait_until(f"the end of {self.name}", lambda: self.pid() is None, seconds, self.log, every=0.02)
        reap(self.pidfile)
        self.pidfile.unlink(missing_ok=True)

    def check(self) -> None:
        """Raises ClusterError with the log's tail when it is not running."""
        if self.pid() is None:
            raise ClusterError(f"{self.name} is not running{tail(self.log)}")


def reap(pidfile: Path) -> None:
    """Take the zombie away if the dead process was our own child (it is not when another command started it)."""
    try:
        os.waitpid(int(pidfile.read_text().split()[0]), os.WNOHANG)
    except (FileNotFoundError, ValueError, IndexError, ChildProcessError):
        return


def run(
    command: Sequence[str | Path], *, stdin: bytes | None = None, seconds: float = 120, env: Mapping[str, str] | None = None
) -> str:
    """Standard output of a short command. Raises ClusterError with what it said when it fails or takes longer."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, input=stdin, capture_output=True, timeout=seconds, check=False, env={**os.environ, **env} if env else None
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(words)}: still running after {seconds:g} s") from error
    except FileNotFoundError as error:
        raise ClusterError(f"{words[0]}: no such program") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise ClusterError(f"{' '.join(words)}: exit code {done.returncode}: {said[-2000:]}")
    return done.stdout.decode(errors="replace")
