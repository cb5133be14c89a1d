"""Faults for a job of two ranks on a cluster: which, where and when is a function of a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

REST_STEPS = 12
"""At most so many steps more between two faults."""
WITHIN_A_STEP = 0.1
NODES_APART = 4
"""Faults between two that take a node away: it takes some 15 s to be back, and one of three has to be there for each rank."""


class Kind(StrEnum):
    """What is done."""

    WORKER = "SIGKILL of a worker"
    AGENT = "SIGKILL of an agent, and so of its pod"
    STOP = "SIGSTOP of a worker, SIGCONT later"
    HANG = "SIGSTOP of a worker for good"
    AGENT_STOP = "SIGSTOP of an agent, SIGCONT later"
    DELETED = "pod deleted by force"
    ALL_DELETED = "all pods deleted by force at once"
    EVICTED = "pod evicted"
    CHILDREN = "Service, NetworkPolicy and budget deleted, and a pod's label taken off"
    SUSPENDED = "worker killed, and the job suspended before it is over"
    POWER = "power cut of a node, and back"
    PARTITION = "cable of a node pulled, and plugged in again"
    MUTE = "nothing that a node sends arrives, for a while"
    DEAF = "nothing arrives at a node, for a while"
    PARTED = "cable between the ranks' two nodes broken, and fixed"
    OPERATOR = "SIGKILL of the operator, and another started"
    SECOND_OPERATOR = "a second operator beside the first, for a while"
    STALE_OPERATOR = "SIGSTOP of the operator, another started, SIGCONT"
    OPERATOR_CLOCK = "clock of the operator an hour ahead, and back"
    NODE_CLOCK = "clock of a node's pods wrong by up to an hour, and right again"
    CONTROL_PLANE = "API server and etcd gone, a worker killed, and both back"
    DISK = "disk of the checkpoints full, and room again"
    OUTPUT = "output volume read-only, and writable again"
    STORE = "object storage gone, a worker killed, and the storage back"
    HUB = "hub busy, a pod deleted by force, and the hub back"
    MOVE = "live move requested"
    SCALED = "another number of replicas, and two again"
    TWO = "two at once"


WEIGHTS = {
    Kind.WORKER: 13,
    Kind.AGENT: 6,
    Kind.STOP: 7,
    Kind.HANG: 2,
    Kind.AGENT_STOP: 3,
    Kind.DELETED: 6,
    Kind.ALL_DELETED: 2,
    Kind.EVICTED: 4,
    Kind.CHILDREN: 3,
    Kind.SUSPENDED: 3,
    Kind.POWER: 2,
    Kind.PARTITION: 2,
    Kind.MUTE: 1,
    Kind.DEAF: 1,
    Kind.PARTED: 2,
    Kind.OPERATOR: 6,
    Kind.SECOND_OPERATOR: 2,
    Kind.STALE_OPERATOR: 2,
    Kind.OPERATOR_CLOCK: 2,
    Kind.NODE_CLOCK: 3,
    Kind.CONTROL_PLANE: 2,
    Kind.DISK: 4,
    Kind.OUTPUT: 4,
    Kind.STORE: 6,
    Kind.HUB: 2,
    Kind.MOVE: 6,
    Kind.SCALED: 8,
    Kind.TWO: 12,
}
OF_STAGES = tuple(kind for kind in Kind if kind not in (Kind.SCALED, Kind.STORE))
"""What can happen to a job of one replica ..."""
OF_REPLICAS = tuple(kind for kind in Kind if kind is not Kind.STORE)
"""... to one of several ..."""
OF_A_BUCKET = tuple(kind for kind in Kind if kind not in (Kind.SCALED, Kind.DISK))
"""... and to one of one replica with its checkpoints in object storage."""
NODE_KINDS = frozenset({Kind.POWER, Kind.PARTITION, Kind.MUTE, Kind.DEAF, Kind.PARTED})
PAIRED = (
    Kind.WORKER,
    Kind.STOP,
    Kind.AGENT,
    Kind.AGENT_STOP,
    Kind.DELETED,
    Kind.OPERATOR,
    Kind.MOVE,
    Kind.DISK,
    Kind.OUTPUT,
    Kind.NODE_CLOCK,
)
"""What may come together with something else."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: Kind
    rank: int
    """Its rank, or whose node it is."""
    steps: int
    """It comes so many new steps after the one before was over ..."""
    pause: float
    """... and so many seconds: somewhere within a step."""
    strength: float
    """How long what goes by itself stays, from 0 (shortest) to 1."""
    pair: tuple[Kind, Kind] | None = None
    """Of two at once: the first is of ``rank``, the second of the other."""

    def __str__(self) -> str:
        what = f"{self.kind}: {self.pair[0]}, and of the other rank, {self.pair[1]}" if self.pair is not None else str(self.kind)
        return f"{what} (rank {self.rank})"


def plan(seed: int, count: int, only: Sequence[Kind] = ()) -> list[Fault]:
    """``count`` faults: each kind once if there is room for all, the others as their weights say, in any order. ``only``: of these kinds."""
    source = random.Random(seed)
    every = list(only or Kind)
    source.shuffle(every)
    more = source.choices(every, [WEIGHTS[kind] for kind in every], k=max(0, count - len(every)))
    kinds = [*every[:count], *more]
    source.shuffle(kinds)
    return [_drawn(kind, source) for kind in _apart(kinds, source)]


def _apart(kinds: list[Kind], source: random.Random) -> list[Kind]:
    """``kinds`` in an order in which at least ``NODES_APART`` others are between two that take a node away, if there are as many."""
    others, away = ([kind for kind in kinds if (kind in NODE_KINDS) is taken] for taken in (False, True))
    between = min(NODES_APART, len(others) // max(1, len(away)))
    room = len(others) - between * max(0, len(away) - 1)
    places = sorted(source.choices(range(room + 1), k=len(away)))
    for number, (place, kind) in reversed(list(enumerate(zip(places, away, strict=True)))):
        others.insert(place + between * number, kind)
    return others


def _drawn(kind: Kind, source: random.Random) -> Fault:
    first, second = source.choice(PAIRED), source.choice(PAIRED)
    fault = Fault(
        kind,
        source.randrange(2),
        source.randint(0, REST_STEPS),
        source.uniform(0, WITHIN_A_STEP),
        source.random(),
        (first, second),
    )
    return fault if kind is Kind.TWO else replace(fault, pair=None)
