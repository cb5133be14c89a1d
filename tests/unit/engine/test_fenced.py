"""A partition: rank 0 of an older view was cut off from the operator, and wakes when the next view has gone on. Two real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.on_disk import declare_over, scan

from lmj_api.run import Run

pytestmark = pytest.mark.integration

DEADLINE = 120

# Rank 0 of a view of two. Rank 1's part was written by this process too; its message comes when the test says so.
MEMBER = """
import sys
import threading
from pathlib import Path
import torch
from lmj_api.manifest import ManifestFile
from lmj_api.names import part_file
from lmj_api.spec import Checkpoint
from lmj_api.topology import Topology
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.checkpoint.tensors import write_tensors
from lmj_trainer.checkpoint.write import folder_of
from lmj_trainer.store.posix import folder
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.memory import MemoryTransport
from lmj_trainer.worker.checkpointer import Checkpointer, ManifestFacts

root, view, value = folder(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3])

class State:
    step = 0
    frozen = {}
    saved = torch.full((1000,), value)
    def tensors(self, block):
        return [("weight", block)]

class Line:
    def emit(self, kind, message="", **details):
        print(f"{kind}: {message}", flush=True)

network = {}
transport = MemoryTransport(network, "0")
transport.join(view, 0, {1: "1"})
peer = MemoryTransport(network, "1")
peer.join(view, 1, {0: "0"})
waits, take = threading.Event(), transport.inbox.take
def asked(*arguments):
    waits.set()
    return take(*arguments)
transport.inbox.take = asked
state = State()
checkpointer = Checkpointer(root, Checkpoint(keep=1), state, transport, Line(), Owner("j", "d"))
checkpointer.begin(lambda: ([], ()))
facts = ManifestFacts(job="j", state_digest="d", epoch=0.0, seconds=0.0, best=False, accuracy=None, best_step=None, best_score=None)
for line in sys.stdin:
    state.step = int(line)
    checkpointer.start(0, Topology(2), 60.0, facts)
    part = write_tensors(folder_of(root, state.step, view) / part_file(1), [("head", torch.full((10,), value))])
    assert waits.wait(60)  # its own part is written, too
    waits.clear()
    print("prepared", flush=True)
    sys.stdin.readline()
    peer.send(0, Envelope(view, Kind.PART, state.step, 0, 1, {"part": part.to_json(), "problem": None}))
    checkpointer.wait(60)
    print(f"done {checkpointer.problem!r} {[c.name for c in checkpointer.known]}", flush=True)
    try:
        transport.inbox.check()
    except Exception as error:
        print(f"broken: {error}", flush=True)
    else:
        print("holds", flush=True)
"""


# Imports torch once, and forks a member for each socket that it is sent.
NURSERY = """
import os, signal, socket, sys
import torch
import lmj_trainer.worker.checkpointer

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
requests, code = socket.socket(fileno=int(sys.argv[1])), compile(sys.argv[2], "member", "exec")
while True:
    message, files, _, _ = socket.recv_fds(requests, 1 << 16, 1)
    if not message:
        break
    if os.fork() == 0:
        requests.close()
        os.dup2(files[0], 0)
        os.dup2(files[0], 1)
        sys.argv = ["member", *message.decode().splitlines()]
        exec(code, {"__name__": "member"})
        os._exit(0)
    os.close(files[0])
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            command = [sys.executable, "-c", NURSERY, str(theirs.fileno()), MEMBER]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        yield ours
        os.killpg(process.pid, signal.SIGKILL)  # its members too
        process.wait(DEADLINE)


class Member:
    def __init__(self, nursery: socket.socket, root: Path, view: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(nursery, ["\n".join([str(root), str(view), str(float(view))]).encode()], [theirs.fileno()])
        ours.settimeout(DEADLINE)
        with ours:
            self.line = ours.makefile("rw")

    def say(self, line: str) -> None:
        self.line.write(line + "\n")
        self.line.flush()

    def hear(self) -> str:
        return self.line.readline().strip()

    def prepare(self, step: int) -> None:
        self.say(str(step))
        assert self.hear() == "prepared"

    def go_on(self) -> list[str]:
        """What it tells until it has said whether its view holds."""
        self.say("")
        told: list[str] = []
        while not told or not told[-1].startswith(("holds", "broken")):
            told.append(self.hear())
            assert told[-1], f"it ended: {told}"
        return told


@pytest.fixture
def members(tmp_path: Path, nursery: socket.socket) -> Iterator[tuple[Member, Member]]:
    made = Member(nursery, tmp_path, 1), Member(nursery, tmp_path, 2)
    yield made
    for member in made:
        member.line.close()  # it ends


def test_what_an_older_view_writes_late_replaces_and_removes_nothing(tmp_path: Path, members: tuple[Member, Member]) -> None:
    old, new = members
    old.prepare(20)  # its parts are there, and here the partition begins: it does not get on
    new.prepare(20)
    half = scan(tmp_path, "d")[-1]
    assert (half.name, half.problem) == ("step-000000020-v1", "half-written (no manifest)")
    assert new.go_on()[-1] == "holds"
    [newest] = scan(tmp_path, "d")
    assert (newest.name, newest.problem) == ("step-000000020-v2", None), "and what the older view left by half is gone"
    before = {path: path.read_bytes() for path in (tmp_path / newest.name).iterdir()}

    told = old.go_on()  # it heals
    why = "step-000000020-v2 is of a newer view, so view 1 is over"
    assert told[0] == f"warning: checkpoint of step 20 failed: {why}; training goes on"
    assert told[1] == f"done {why!r} []"
    assert told[2] == f"broken: {why}"
    assert scan(tmp_path, "d") == [newest]
    assert {path: path.read_bytes() for path in (tmp_path / newest.name).iterdir()} == before


def test_one_that_comes_before_the_newer_views_first_stands_beside_it(tmp_path: Path, members: tuple[Member, Member]) -> None:
    old, new = members
    old.prepare(20)
    new.prepare(10)
    assert old.go_on()[-1] == "holds", "nothing tells it"
    assert new.go_on()[-1] == "holds"
    assert [(c.name, c.problem) for c in scan(tmp_path, "d")] == [("step-000000020-v1", None), ("step-000000010-v2", None)]
    new.prepare(20)
    assert new.go_on()[-1] == "holds"
    assert scan(tmp_path, "d")[0].name == "step-000000020-v2"
    old.prepare(30)
    assert old.go_on()[-1].startswith("broken")
    assert [(c.name, c.problem) for c in scan(tmp_path, "d")] == [("step-000000020-v2", None), ("step-000000020-v1", None)]


def test_what_an_older_view_finishes_late_does_not_cost_what_the_newer_one_stands_on(
    tmp_path: Path, members: tuple[Member, Member]
) -> None:
    """One is kept. The next view was formed before this one's newest was there, and has none of its own yet."""
    old, _ = members
    old.prepare(10)
    assert old.go_on()[-1] == "holds"
    old.prepare(20)  # here the partition begins
    declare_over(tmp_path, Run(), 1)
    assert [c.name for c in scan(tmp_path, "d") if c.problem is None] == ["step-000000010-v1"], (
        "the next view begins with this one"
    )
    told = old.go_on()
    assert told[-1] == "broken: view 1 was declared over"
    assert [c.name for c in scan(tmp_path, "d")] == ["step-000000010-v1"]
