"""Real launchers under real supervisors, as an agent has them; the test is the operator."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lmj_api.protocol import AgentState, Event, EventKind, WorkerPhase
from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Member, Resume, View
from lmj_trainer import linux
from lmj_trainer.agent import standby
from lmj_trainer.agent.children import Children
from lmj_trainer.agent.environment import script_environment
from lmj_trainer.agent.launch import Program
from lmj_trainer.agent.launcher import Launcher
from lmj_trainer.agent.supervisor import Supervisor

PYTHON = [sys.executable, "-m", "lmj_trainer"]
SECONDS = 60.0
"""For what takes one on a machine that has nothing else to do."""


def environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    return script_environment({**kept, "OMP_NUM_THREADS": "1"}, "lo")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def children() -> AsyncIterator[Children]:
    it = Children(adopts=linux.adopt_orphans())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, it.sweep)
    yield it
    loop.remove_signal_handler(signal.SIGCHLD)
    linux.adopt_orphans(False)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def warm(children: Children) -> AsyncIterator[Launcher]:
    """Has a fork server, for all tests of a module."""
    it = Launcher(Program([], [*PYTHON, "fork-server", "--script"], lambda incarnation: [], environment()), children, SECONDS)
    told: list[str] = []
    it.keep_server(told.append)
    yield it
    await it.close()
    assert told == []


class Ranks:
    """Launchers of a job, each in a pod of its own."""

    def __init__(self, folder: Path, children: Children, warm: Launcher | None) -> None:
        self.folder, self._children, self._warm = folder, children, warm
        self.environment = environment()
        self.supervisors: list[Supervisor] = []
        self.incarnations: list[int] = []
        self._servers: list[Launcher] = []
        self._number = 0
        self._waiting: asyncio.Task[None] | None = None

    def write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    async def begin(self, ranks: int, *args: str, **command: Any) -> None:
        """Have ``ranks`` launchers ready."""
        document = {
            "metadata": {"name": "scripted"},
            "spec": {
                "strategy": "Command",
                "command": {"args": list(args), "workingDir": str(self.folder), **command},
                "dataParallel": {"replicas": ranks},
                "output": {"path": str(self.folder / "out")},
            },
        }
        job = self.write("job.json", LiveMigrationJob.model_validate(document).to_json())
        for rank in range(ranks):
            options = [
                "--job",
                str(job),
                "--rank",
                str(rank),
                "--pod",
                f"pod-{rank}",
                "--incarnation",
            ]
            memory = {"LMJ_MEMORY_DIR": str(self.folder / f"memory-{rank}")} if "memory" in command else {}
            self.supervisors.append(Supervisor(rank, f"pod-{rank}", self._launcher(options, memory)))
            self.incarnations.append(0)
        for rank in range(ranks):
            await self.start(rank)
        await self.until(*[WorkerPhase.READY] * ranks)

    def _launcher(self, options: Sequence[str], memory: Mapping[str, str] | None = None) -> Launcher:
        own = {**environment(), **(memory or {})}
        # What a worker is forked from has the variables that are its own.
        server = [*PYTHON, "fork-server", "--script"] if memory and self._warm is not None else None
        program = Program([*PYTHON, "launch"], server, lambda number: [*options, str(number)], own)
        launcher = Launcher(program, self._children, SECONDS)
        if server is not None:
            launcher.keep_server(lambda _: None)
            self._servers.append(launcher)
        elif self._warm is not None:
            launcher._server = self._warm._server
        return launcher

    def standby(self) -> Supervisor:
        """Another pod, without a rank, that gets warm."""
        options = ["--job", str(self.folder / "job.json"), "--pod", "spare", "--incarnation"]
        supervisor = Supervisor(None, "spare", self._launcher(options))
        self._waiting = asyncio.create_task(standby.wait(supervisor))
        return supervisor

    async def start(self, rank: int) -> None:
        self.incarnations[rank] += 1
        await self.supervisors[rank].put_worker(self.incarnations[rank])

    def view(self, *ranks: int) -> View:
        """Have ``ranks`` (none: all) join the next view."""
        self._number += 1
        members = []
        for rank in ranks or range(len(self.supervisors)):
            address = self.state(rank).worker.address
            assert address is not None
            members.append(Member(rank=rank, pod=f"pod-{rank}", incarnation=self.incarnations[rank], address=address))
        view = View(number=self._number, members=members, resume=Resume(step=0), reason="for the test")
        for member in members:
            self.supervisors[member.rank].put_view(view)
        return view

    def state(self, rank: int) -> AgentState:
        return self.supervisors[rank].state

    def events(self, rank: int, kind: EventKind | None = None) -> list[Event]:
        return [event for event in self.supervisors[rank].log.after(0) if kind in (None, event.kind)]

    async def until(self, *phases: WorkerPhase) -> None:
        await self.eventually(lambda: [self.state(rank).worker.phase for rank in range(len(phases))] == list(phases))

    async def eventually(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end, [self.state(rank).worker for rank in range(len(self.supervisors))]
            await asyncio.sleep(0.01)

    def written(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    async def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        for supervisor in self.supervisors:
            supervisor.kill("the test is over")
            await supervisor.stop(0)
        for launcher in self._servers:
            await launcher.close()


@pytest_asyncio.fixture(loop_scope="module")
async def cold_ranks(tmp_path: Path, children: Children) -> AsyncIterator[Ranks]:
    it = Ranks(tmp_path, children, None)
    yield it
    await it.close()


@pytest_asyncio.fixture(loop_scope="module")
async def ranks(tmp_path: Path, children: Children, warm: Launcher) -> AsyncIterator[Ranks]:
    it = Ranks(tmp_path, children, warm)
    yield it
    await it.close()


def alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def lives() -> Callable[[int], bool]:
    return alive
