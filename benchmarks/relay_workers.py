"""Messages between two workers' transports, in a process each: straight, or behind a relay each."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from lmj_trainer.relay.line import RelayLine
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.tensorpipe import TensorPipeTransport

PATIENCE = 120.0


def _transport(relay: Path | None) -> TensorPipeTransport:
    return TensorPipeTransport(PATIENCE, gateway=None if relay is None else RelayLine(relay))


def _answer(line: Connection, relay: Path | None) -> None:
    transport = _transport(relay)
    line.send(transport.address)
    transport.join(1, 1, {0: line.recv()})
    line.send(None)
    while (work := line.recv()) is not None:
        first, count = work
        for number in range(first, first + count):
            transport.inbox.take(Kind.ACTIVATION, number, 0, 0, PATIENCE)
            transport.send(0, Envelope(1, Kind.ACTIVATION, number, 0, 1))
    os._exit(0)  # threads of the agent run on


def _ask(line: Connection, relay: Path | None) -> None:
    transport = _transport(relay)
    line.send(transport.address)
    transport.join(1, 0, {1: line.recv()})
    line.send(None)
    first = 0
    while (work := line.recv()) is not None:
        size, count = work
        payload, found = torch.ones(size // 4), []
        for number in range(first, first + count):
            begin = time.perf_counter()
            transport.send(1, Envelope(1, Kind.ACTIVATION, number, 0, 0, payload))
            transport.inbox.take(Kind.ACTIVATION, number, 0, 1, PATIENCE)
            found.append(time.perf_counter() - begin)
        first += count
        line.send(found)
    os._exit(0)


@dataclass(frozen=True)
class Workers:
    """Two, in a view of their own."""

    asks: Connection
    answers: Connection
    processes: tuple[multiprocessing.process.BaseProcess, multiprocessing.process.BaseProcess]

    def ask(self, size: int, count: int, first: int) -> list[float]:
        """Seconds that each of ``count`` tensors of ``size`` bytes takes until it is answered. ``first``: messages before."""
        self.answers.send((first, count))
        self.asks.send((size, count))
        found: list[float] = self.asks.recv()
        return found

    def close(self) -> None:
        """End both."""
        for line in (self.asks, self.answers):
            line.send(None)
        for process in self.processes:
            process.join(PATIENCE)


def workers(near: Path | None = None, far: Path | None = None) -> Workers:
    """``near``, ``far``: the sockets of their relays."""
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    context = multiprocessing.get_context("spawn")
    lines, processes = [], []
    for run, relay in ((_ask, near), (_answer, far)):
        ours, theirs = context.Pipe()
        process = context.Process(target=run, args=(theirs, relay), daemon=True)
        process.start()
        lines.append(ours)
        processes.append(process)
    addresses = [line.recv() for line in lines]
    for line, address in zip(lines, reversed(addresses), strict=True):
        line.send(address)
    for line in lines:
        line.recv()
    return Workers(lines[0], lines[1], (processes[0], processes[1]))
