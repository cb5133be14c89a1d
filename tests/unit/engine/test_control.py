"""The worker's line to its agent: JSON lines both ways over one socket."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from lmj_api.cut import Cut
from lmj_api.protocol import Command, CommandKind, Event, EventKind, Recut
from lmj_api.view import Member, Resume, View
from lmj_trainer.worker.control import Control

pytestmark = pytest.mark.integration

DEADLINE = 30.0


def view(number: int) -> View:
    member = Member(rank=0, pod="p-r0-1", incarnation=1, address="a")
    return View(number=number, members=[member], resume=Resume(step=0), reason=f"reason {number}")


class Agent:
    """The other end."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(DEADLINE)
        self.control = Control(theirs.detach())
        self.lines = self.socket.makefile("rb")

    def tell(self, *commands: Command) -> None:
        self.socket.sendall(b"".join(command.to_json().encode() + b"\n" for command in commands))

    def tell_view(self, number: int) -> None:
        self.tell(Command(kind=CommandKind.VIEW, view=view(number)))


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    left = threading.Event()
    # It would end this process when the agent goes.
    monkeypatch.setattr("lmj_trainer.worker.control._leave", left.set)
    result = Agent()
    yield result
    result.lines.close()
    result.socket.close()
    assert left.wait(DEADLINE), "a worker without an agent leaves"


def test_an_event_is_one_line(agent: Agent) -> None:
    agent.control.emit(EventKind.READY, "two\nlines", address="1.2.3.4:5")
    event = Event.model_validate_json(agent.lines.readline())
    assert (event.kind, event.message, event.address, event.seq) == (EventKind.READY, "two lines", "1.2.3.4:5", 0)


def test_events_of_several_threads_are_whole(agent: Agent) -> None:
    threads = [
        threading.Thread(target=lambda: [agent.control.emit(EventKind.WARNING, "x" * 900) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for _ in range(200):
        assert Event.model_validate_json(agent.lines.readline()).message == "x" * 900
    for thread in threads:
        thread.join()


def test_views_come_in_order_and_the_newest_counts(agent: Agent) -> None:
    told: list[tuple[int, str]] = []
    heard = threading.Semaphore(0)
    agent.control.on_newer_view(lambda number, reason: (told.append((number, reason)), heard.release()))
    agent.tell_view(1)
    assert agent.control.next_order() == view(1)
    agent.tell_view(2)
    agent.tell_view(3)
    for _ in range(3):
        assert heard.acquire(timeout=DEADLINE)
    assert agent.control.next_order() == view(3)
    assert told == [(1, "view 1: reason 1"), (2, "view 2: reason 2"), (3, "view 3: reason 3")]


def test_a_view_that_lost_a_member_is_left_for_no_other(agent: Agent) -> None:
    told: list[tuple[int, str]] = []
    heard = threading.Semaphore(0)
    agent.control.on_newer_view(lambda number, reason: (told.append((number, reason)), heard.release()))
    agent.tell(Command(kind=CommandKind.LEAVE, number=3))
    assert heard.acquire(timeout=DEADLINE)
    assert told == [(4, "view 3 lost a member")]
    agent.tell_view(4)
    assert agent.control.next_order() == view(4)


def test_drain_is_told_to_whoever_trains_and_whoever_waits(agent: Agent) -> None:
    agent.tell(Command(kind=CommandKind.DRAIN))
    assert agent.control.draining.wait(DEADLINE)
    assert agent.control.next_order() is None


def test_a_view_goes_before_a_drain(agent: Agent) -> None:
    """The view is joined, and left at its next step boundary with a checkpoint."""
    agent.tell(Command(kind=CommandKind.VIEW, view=view(4)), Command(kind=CommandKind.DRAIN))
    assert agent.control.draining.wait(DEADLINE)
    assert agent.control.next_order() == view(4)


def test_who_follows_parts_is_told_whenever_it_is_asked_for(agent: Agent) -> None:
    """A worker has its source only when it is ready."""
    members = [Member(rank=0, pod="p-r0-2", incarnation=1, address="b")]
    recut, told = Recut(cut=Cut(stages=1), followers=members), list[Recut | None]()
    heard = threading.Semaphore(0)
    agent.tell(Command(kind=CommandKind.RECUT, recut=recut), Command(kind=CommandKind.DRAIN))
    assert agent.control.draining.wait(DEADLINE)
    agent.control.on_recut(lambda recut: (told.append(recut), heard.release()))
    agent.tell(Command(kind=CommandKind.RECUT))
    assert heard.acquire(timeout=DEADLINE)
    assert heard.acquire(timeout=DEADLINE)
    assert told == [recut, None]


def test_a_worker_does_not_outlive_its_agent() -> None:
    ours, theirs = socket.socketpair()
    program = f"import time; from lmj_trainer.worker.control import Control; Control({theirs.fileno()}); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", program], pass_fds=[theirs.fileno()])
    theirs.close()
    ours.close()
    try:
        assert process.wait(DEADLINE) == 1
    finally:
        process.kill()
