"""What a small message between two workers costs on loopback: processor time of who sends it and of who takes it."""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median

import torch

from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.heartbeats import Heartbeats, Pulse
from lmj_trainer.transport.tensorpipe import TensorPipeTransport

COUNT = 2000
ROUNDS = 7
PARAMETERS = 50
"""Of a stage: a report has the norm of each one's gradient."""
_SECONDS = 120.0
_NEVER = 3600.0


@dataclass(frozen=True)
class Cost:
    """Seconds of a processor."""

    send: float
    """A report that is sent, and its acknowledgement taken."""
    take: float
    """A report that is taken, and acknowledged."""
    beat: float
    """A heartbeat that is sent, and one that is taken."""
    watch: float
    """A link's socket that is looked after once."""
    sockets: int
    """Of the links between two ranks, at either."""

    def of_step(self, ranks: int) -> float:
        """Of a step's commit at the leader: it takes a report of each other rank, and answers it."""
        return (ranks - 1) * (self.send + self.take)

    def of_second(self, ranks: int, beats: float) -> float:
        """Of links to all others for a second, with ``beats`` in it: each rank sends them, takes theirs, and looks after its sockets."""
        return (ranks - 1) * beats * (self.beat + self.sockets * self.watch)


def _report(number: int) -> Envelope:
    wish = {"stop": False, "pause": False, "unsent": False, "without_snapshot": False}
    return Envelope(1, Kind.PREPARED, number, 0, 0, {"norms": torch.ones(PARAMETERS), "losses": [1.0], "wish": wish})


def _sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        found += os.path.lexists(path) and os.readlink(path).startswith("socket:")
    return found


def _take(line: Connection) -> None:
    """The process that takes: for each number that it is told, so many reports from it on."""
    transport = TensorPipeTransport(silence=_NEVER)
    line.send(transport.address)
    transport.join(1, 1, {0: line.recv()})
    line.send(None)
    while (first := line.recv()) is not None:
        begin = time.process_time()
        line.send(None)
        for number in range(first, first + COUNT):
            transport.inbox.take(Kind.PREPARED, number, 0, 0, _SECONDS)
        line.send(time.process_time() - begin)
    os._exit(0)  # threads of the agent run on


def _send(line: Connection) -> None:
    """The process that sends, and tells what all cost."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=_take, args=(theirs,))
    other.start()
    transport = TensorPipeTransport(silence=_NEVER)
    address, bare = ours.recv(), _sockets()
    ours.send(transport.address)
    ours.recv()
    transport.join(1, 0, {1: address})
    sends, takes, beats = [], [], []
    for first in range(0, ROUNDS * COUNT, COUNT):
        ours.send(first)
        ours.recv()
        begin = time.process_time()
        for number in range(first, first + COUNT):
            transport.send(1, _report(number))
        transport.flush(_SECONDS)
        sends.append((time.process_time() - begin) / COUNT)
        takes.append(ours.recv() / COUNT)
        beats.append(_beat())
    # The other has not called this one: its link back has as many.
    sockets = 2 * (_sockets() - bare)
    transport._watch._arm(every=True)
    begin = time.process_time()
    for _ in range(COUNT):
        transport._watch._arm(every=False)
    watch = (time.process_time() - begin) / COUNT / max(1, sum(transport._watch._links.values()))
    ours.send(None)
    other.join(_SECONDS)
    line.send(Cost(median(sends), median(takes), median(beats), watch, sockets))
    line.recv()
    os._exit(0)


def _beat() -> float:
    with closing(Heartbeats("127.0.0.1", 1000)) as ours, closing(Heartbeats("127.0.0.1", 1000)) as theirs:
        address = f"tcp://127.0.0.1:{theirs.port}"
        ours.meet(address, theirs.port)
        while ours.beat(address) is not Pulse.BEATS:
            theirs.hear()
        begin = time.process_time()
        for _ in range(COUNT):
            ours.beat(address)
            theirs.hear()
        return (time.process_time() - begin) / COUNT


def measure() -> Cost:
    """Medians of some rounds between two processes."""
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    sender = context.Process(target=_send, args=(theirs,))
    sender.start()
    cost: Cost = ours.recv()
    ours.send(None)
    sender.join(_SECONDS)
    return cost
