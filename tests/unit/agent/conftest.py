"""A supervisor over fake workers."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lmj_api.protocol import AgentState
from lmj_api.view import Member, Resume, View
from lmj_trainer.agent.supervisor import Supervisor

FAKE = str(Path(__file__).with_name("fake_worker.py"))
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

    def __init__(self, *acts: str) -> None:
        self.acts = [each.split() if isinstance(each, str) else each for each in acts]
        self.supervisor = Supervisor(0, POD, self.command, {"PATH": "/usr/bin:/bin", "SHOWN": "shown"})

    def command(self, incarnation: int, fd: int) -> list[str]:
        return [sys.executable, "-S", "-E", FAKE, str(fd), *self.acts[min(incarnation, len(self.acts)) - 1]]

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
                async with asyncio.timeout(min(left, 0.5)):
                    await changed.wait()
            except TimeoutError:
                continue
        return self.state


@pytest.fixture
async def rig() -> AsyncIterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*acts: str) -> Rig:
        made.append(Rig(*acts))
        return made[-1]

    yield make
    for each in made:
        await each.supervisor.stop(0)
