"""A supervisor over fake workers."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from lmj_api.protocol import AgentState
from lmj_api.view import Member, Resume, View
from lmj_trainer import linux
from lmj_trainer.agent.children import Children
from lmj_trainer.agent.launch import Program
from lmj_trainer.agent.launcher import Launcher
from lmj_trainer.agent.supervisor import Supervisor

FAKE = str(Path(__file__).with_name("fake_worker.py"))
FAKE_FORK_SERVER = str(Path(__file__).with_name("fake_fork_server.py"))
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "SHOWN": "shown"}
if "PYTHONPATH" in os.environ:  # a fork server is to be of the checkout that is tested
    ENVIRONMENT["PYTHONPATH"] = os.environ["PYTHONPATH"]
POD = "job-r0-1"


def view(number: int, *, incarnation: int = 1, pod: str = POD, reason: str = "for the test") -> View:
    members = [
        Member(rank=0, pod=pod, incarnation=incarnation, address="127.0.0.1:1"),
        Member(rank=1, pod="job-r1-1", incarnation=1, address="127.0.0.1:2"),
    ]
    return View(number=number, members=members, resume=Resume(step=0), reason=reason)


@pytest.fixture
def make_view() -> Callable[..., View]:
    return view


class Rig:
    """A supervisor whose n-th worker does the n-th list of acts (the last one again after that)."""

    def __init__(
        self,
        *acts: str,
        server: str | None = None,
        patience: float = 20.0,
        inherited: dict[str, int] | None = None,
        rank: int | None = 0,
    ) -> None:
        """``server``: what the fork server does when it loads; None: there is none. ``rank`` None: a standby."""
        self.acts = [each.split() if isinstance(each, str) else each for each in acts]
        cold = [sys.executable, "-S", "-E", FAKE]
        self.program = Program(
            cold, None if server is None else [sys.executable, FAKE_FORK_SERVER, server], self.arguments, ENVIRONMENT
        )
        self.children = Children(adopts=server is not None and linux.adopt_orphans())
        if self.children.adopts:
            asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.children.sweep)
        self.launcher = Launcher(self.program, self.children, patience)
        self.supervisor = Supervisor(rank, POD, self.launcher, inherited)
        self.launcher.keep_server(self.supervisor.warn)

    def arguments(self, incarnation: int) -> list[str]:
        return self.acts[min(max(incarnation, 1), len(self.acts)) - 1]

    async def close(self) -> None:
        await self.supervisor.stop(0)
        if self.children.adopts:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
            linux.adopt_orphans(False)

    @property
    def state(self) -> AgentState:
        return self.supervisor.state

    async def until(self, condition: Callable[[AgentState], object], seconds: float = 20.0) -> AgentState:
        """Wait until ``condition`` holds."""
        end = time.monotonic() + seconds
        while not condition(self.state):
            left = end - time.monotonic()
            assert left > 0, f"not within {seconds} s: {self.state}"
            changed = self.supervisor.changed
            if condition(self.state):
                break
            try:
                async with asyncio.timeout(min(left, 0.05)):
                    await changed.wait()
            except TimeoutError:
                continue
        return self.state


@pytest.fixture
async def rig() -> AsyncIterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*acts: str, **options: Any) -> Rig:
        made.append(Rig(*acts, **options))
        return made[-1]

    yield make
    for each in made:
        await each.close()
