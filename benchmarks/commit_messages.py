"""Messages of a step, counted over the transport in memory: those of its commit at the leader, and those of the sum over replicas."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import torch

from lmj_api.shards import share
from lmj_api.topology import Topology
from lmj_trainer.group.commit import Decision, Report, agree
from lmj_trainer.group.group import Group
from lmj_trainer.strategy.pipeline.blocks import BLOCK
from lmj_trainer.strategy.pipeline.exchange import Exchange
from lmj_trainer.strategy.pipeline.sums import ShardSums
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.memory import MemoryTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from lmj_trainer.state.stage_state import StageState

PATIENCE = 60.0
_STACK = 1 << 18
"""Bytes of a thread's: there is one for each rank."""


class Counted(MemoryTransport):
    """Counts what it sends."""

    def __init__(self, network: dict[str, MemoryTransport], address: str) -> None:
        super().__init__(network, address)
        self.sent: list[tuple[int, Kind]] = []

    def send(self, rank: int, envelope: Envelope) -> None:
        """As the port says."""
        self.sent.append((rank, envelope.kind))
        super().send(rank, envelope)


class _State:
    """One parameter of one element."""

    def __init__(self) -> None:
        self.step = 0
        self.slots = [SimpleNamespace(grad=torch.ones(1), copy_of=None)]
        self.loss_scale = None

    def prepare(self) -> None:
        """All gradients are there."""

    def commit(self, coefficient: float, rate: float) -> None:
        self.step += 1


@dataclass(frozen=True)
class Messages:
    """Of one step at one rank."""

    received: int
    sent: int

    @property
    def all(self) -> int:
        return self.received + self.sent


def _at_once(ranks: Sequence[int], work: Callable[[int], object]) -> None:
    before = threading.stack_size(_STACK)
    try:
        with ThreadPoolExecutor(len(ranks)) as pool:
            list(pool.map(work, ranks))
    finally:
        threading.stack_size(before)


def _groups(topology: Topology) -> tuple[dict[int, Counted], dict[int, Group]]:
    network: dict[str, MemoryTransport] = {}
    transports = {rank: Counted(network, f"rank-{rank}") for rank in topology.ranks}
    for rank, transport in transports.items():
        transport.join(1, rank, {other: f"rank-{other}" for other in topology.ranks if other != rank})
    return transports, {rank: Group(transport, rank, topology, PATIENCE) for rank, transport in transports.items()}


def _of(rank: int, transports: dict[int, Counted]) -> Messages:
    received = sum(to == rank for transport in transports.values() for to, _ in transport.sent)
    return Messages(received, len(transports[rank].sent))


def commit(stages: int, replicas: int) -> Messages:
    """Those at the leader when all of ``replicas`` pipelines agree on a step."""
    topology = Topology(stages, replicas)
    transports, groups = _groups(topology)
    states = {rank: _State() for rank in topology.ranks}

    def whole(reports: Sequence[Report]) -> tuple[float, Tensor]:
        return sum(loss for report in reports for loss in report.losses), torch.cat([report.norms for report in reports])

    def take(rank: int) -> None:
        state = cast("StageState", states[rank])
        agree(groups[rank], state, [1.0], whole, 1.0, 0.1, lambda wish: Decision())

    _at_once(topology.ranks, take)
    assert all(state.step == 1 for state in states.values()), "all have committed"
    return _of(topology.leader, transports)


def exchange(replicas: int) -> Messages:
    """Those at a rank when it adds up a gradient with those of its stage in other replicas, each of which owns a message of it."""
    topology = Topology(1, replicas)
    transports, groups = _groups(topology)
    gradients = {rank: torch.zeros(BLOCK * replicas) for rank in topology.ranks}

    def add_up(rank: int) -> None:
        gradient = gradients[rank]
        sums = ShardSums(gradient, replicas)
        sums.begin(share(replicas, replicas, rank))
        gradient.fill_(1.0)
        state = cast(
            "StageState",
            SimpleNamespace(size=len(gradient), slots=[], gradient=gradient, lent=lambda span, first: [gradient[span].clone()]),
        )
        Exchange(groups[rank], state, sums, 0).finish()

    _at_once(topology.ranks, add_up)
    assert all(bool((gradient == replicas).all()) for gradient in gradients.values()), "all have the sum"
    return _of(topology.leader, transports)
