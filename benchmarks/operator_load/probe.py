"""How long a process's loop answers nothing, asked from outside: ``python -m operator_load.probe PID PORT``.

On a machine that is busy a process also waits for a processor, and so does who asks it. The kernel counts for how long each thread
was ready to run and did not, and for how long the host of a virtual machine gave its processors to others: that is taken off, so what is
left is what the loop did instead of answering. Who asks is a process of its own, which waits for nothing else.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from operator_load.usage import stolen

PAUSE_SECONDS = 0.01
"""Between two questions. A stop that begins in between is seen so much shorter at most."""
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One question, and its answer."""

    at: float
    """When it was asked, seconds since the epoch."""
    seconds: float
    """Until it was answered."""
    queued: float
    """Of these, for which the loop's thread, or that of who asked, waited for a processor."""
    ran: float
    """Of these, for which the loop's thread had a processor; and from the answer on, until that was looked at."""
    stolen: float
    """For how long one of the processors was others' meanwhile."""

    @property
    def stop(self) -> float:
        """For how long the loop did something else: for as long as it had a processor, at least."""
        most = max(0.0, self.seconds - self.queued)
        return max(most - self.stolen, min(self.ran, most))


@dataclass
class Probe:
    """Has ``/healthz`` of the process ``pid`` at 127.0.0.1:``port`` asked again and again, while in a ``with`` block; what came of it
    is known afterwards.
    """

    pid: int
    port: int
    folder: Path
    answers: list[Answer] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Questions that had no answer."""

    def __enter__(self) -> Probe:
        command = [sys.executable, "-m", "operator_load.probe", str(self.pid), str(self.port)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        with self.file.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, env=environment)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_SECONDS)
        self.answers, self.failed = [], []
        for line in self.file.read_text().splitlines():
            told = json.loads(line)
            if isinstance(told, str):
                self.failed.append(told)
            else:
                self.answers.append(Answer(**told))

    @property
    def file(self) -> Path:
        """What it was answered, a line each; one that is whole has its end."""
        return self.folder / "answers.jsonl"


def scheduled(pid: int, thread: int) -> tuple[float, float]:
    """Seconds for which a thread of ``pid`` has run, and for which it was ready to and had no processor, since it began."""
    ran, queued, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
    return int(ran) / 1e9, int(queued) / 1e9


def _ask(asking: http.client.HTTPConnection, pid: int) -> Answer:
    own = os.getpid(), threading.get_native_id()
    others, (ran, queued), (_, waited) = stolen(), scheduled(pid, pid), scheduled(*own)
    at, begin = time.time(), time.monotonic()
    asking.request("GET", "/healthz")
    answer = asking.getresponse()
    answer.read()
    took = time.monotonic() - begin
    if answer.status != 200:
        raise OSError(f"HTTP {answer.status}")
    (ran_then, queued_then), (_, waited_then) = scheduled(pid, pid), scheduled(*own)
    # All at the same time, or one: the thread has one of them.
    most = max(then - before for before, then in zip(others, stolen(), strict=True))
    return Answer(at, took, queued_then - queued + waited_then - waited, ran_then - ran, most)


def ask_until(over: threading.Event, pid: int, port: int, out: IO[str]) -> None:
    """Ask until ``over``, and write a line for each question."""
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    while not over.wait(PAUSE_SECONDS):
        told: object
        try:
            told = asdict(_ask(asking, pid))
        except (OSError, http.client.HTTPException) as error:
            told = f"{type(error).__name__}: {error}"
            asking.close()
        out.write(json.dumps(told) + "\n")
    out.flush()


def main() -> None:
    """Until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    ask_until(over, int(sys.argv[1]), int(sys.argv[2]), sys.stdout)


if __name__ == "__main__":
    main()
