"""Ranks as real worker processes on loopback, without agents: the test plays the agents and the plan."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from forked_ranks import Forked, ForkedRanks

from lmj_api.protocol import Command, CommandKind, Event, EventKind, Holding
from lmj_api.spec import Device, LiveMigrationJob
from lmj_api.view import Member, Resume, View

DEADLINE = 240.0  # seconds: generous, for two slow cores

_server: ForkedRanks | None = None
"""Forks the workers without a GPU; None: they are started cold."""


def environment() -> dict[str, str]:
    """Variables of a worker."""
    return os.environ | {"OMP_NUM_THREADS": "1", "TP_SOCKET_IFNAME": "lo"}


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """Within it workers are forked from one process that has everything imported, where the system can."""
    global _server
    if sys.platform != "linux":
        yield
        return
    _server = ForkedRanks(environment() | {"CUDA_VISIBLE_DEVICES": ""})
    try:
        yield
    finally:
        _server.close()
        _server = None


class Rank:
    """One worker process, and what it told."""

    def __init__(self, job: Path, rank: int, incarnation: int, log: Path, cuda: bool, memory: int | None) -> None:
        ours, theirs = socket.socketpair()
        self.rank, self.incarnation = rank, incarnation
        self.events: queue.Queue[Event | None] = queue.Queue()
        self.seen: list[Event] = []
        self.log = log
        arguments = ["--job", str(job), "--rank", str(rank), "--pod", f"test-r{rank}-1", "--incarnation", str(incarnation)]
        files = {"--fd": theirs.fileno()} | ({} if memory is None else {"--memory-fd": memory})
        self.process: subprocess.Popen[bytes] | Forked
        with log.open("ab") as output:
            if _server is not None and not cuda:
                self.process = _server.launch(arguments, files, output.fileno())
            else:
                named = [word for option, file in files.items() for word in (option, str(file))]
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "lmj_trainer", "worker", *arguments, *named],
                    pass_fds=list(files.values()),
                    env=environment() | ({} if cuda else {"CUDA_VISIBLE_DEVICES": ""}),
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        theirs.close()
        self._socket = ours
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                self.events.put(Event.model_validate_json(line))
        self.events.put(None)

    def wait(self, condition: Callable[[Event], bool]) -> Event:
        """The next event that meets ``condition``."""
        deadline = time.monotonic() + DEADLINE
        while True:
            event = self.events.get(timeout=max(0.1, deadline - time.monotonic()))
            if event is None:
                raise AssertionError(f"rank {self.rank} ended with {self.process.wait(30)}:\n{self.log.read_text()[-3000:]}")
            self.seen.append(event)
            if condition(event):
                return event

    def wait_kind(self, *kinds: EventKind) -> Event:
        """The next event of one of ``kinds``."""
        return self.wait(lambda event: event.kind in kinds)

    def tell(self, command: Command) -> None:
        """Send a command, as its agent would."""
        self._socket.sendall(command.to_json().encode() + b"\n")

    def kill(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self._socket.close()


class Group:
    """All ranks of one job. ``memory``: each has memory that outlives its workers."""

    def __init__(self, job: LiveMigrationJob, folder: Path, memory: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.job, self.folder = job, folder
        self.path = folder / "job.json"
        self.path.write_text(job.to_json())
        self.ranks: dict[int, Rank] = {}
        self.addresses: dict[int, str] = {}
        self.incarnations: dict[int, int] = {}
        self.view = 0
        self.memories = {rank: os.memfd_create(f"rank-{rank}") for rank in range(job.spec.world_size)} if memory else {}
        self.holdings: dict[int, Holding | None] = {}

    def start(self, *ranks: int) -> None:
        """Start these ranks' workers (all, without arguments) and wait until they are ready."""
        wanted = ranks or tuple(range(self.job.spec.world_size))
        for rank in wanted:
            self.incarnations[rank] = self.incarnations.get(rank, 0) + 1
            log = self.folder / f"rank-{rank}.log"
            cuda = self.job.spec.training.device is Device.CUDA
            self.ranks[rank] = Rank(self.path, rank, self.incarnations[rank], log, cuda, self.memories.get(rank))
        for rank in wanted:
            ready = self.ranks[rank].wait_kind(EventKind.READY)
            assert ready.address is not None
            self.addresses[rank], self.holdings[rank] = ready.address, ready.holding

    def form(self, resume: Resume) -> None:
        """Form the next view of all ranks."""
        self.view += 1
        members = [
            Member(rank=rank, pod=f"test-r{rank}-1", incarnation=self.incarnations[rank], address=self.addresses[rank])
            for rank in sorted(self.ranks)
        ]
        view = View(number=self.view, members=members, resume=resume, reason="test")
        for rank in self.ranks.values():
            rank.tell(Command(kind=CommandKind.VIEW, view=view))

    def leave(self, *ranks: int) -> None:
        """Have ``ranks`` leave the view, and hear what they have in memory."""
        for rank in ranks:
            self.ranks[rank].tell(Command(kind=CommandKind.LEAVE, number=self.view))
            self.holdings[rank] = self.ranks[rank].wait_kind(EventKind.LOST_PEER).holding

    def finish(self) -> None:
        """Wait until all ranks completed."""
        for rank in self.ranks.values():
            rank.wait_kind(EventKind.COMPLETED)
        for rank in self.ranks.values():
            assert rank.process.wait(30) == 0

    def close(self) -> None:
        """End what still runs."""
        for rank in self.ranks.values():
            rank.kill()
        for memory in self.memories.values():
            os.close(memory)


@contextlib.contextmanager
def group(job: LiveMigrationJob, folder: Path, memory: bool = False) -> Iterator[Group]:
    """A group that leaves no process behind."""
    result = Group(job, folder, memory)
    try:
        yield result
    finally:
        result.close()


def run(job: LiveMigrationJob, folder: Path) -> None:
    """Train ``job`` from the start to the end without disturbance."""
    with group(job, folder) as ranks:
        ranks.start()
        ranks.form(Resume(step=0))
        ranks.finish()
