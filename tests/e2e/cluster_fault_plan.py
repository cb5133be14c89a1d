"""Faults for a job of two ranks on a cluster: which, where and when is a function of a seed."""

from __future__ import annotations

import random
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
    DELETED = "pod deleted by force"
    EVICTED = "pod evicted"
    POWER = "power cut of a node, and back"
    PARTITION = "cable of a node pulled, and plugged in again"
    OPERATOR = "SIGKILL of the operator, and another started"
    DISK = "disk of the checkpoints full, and room again"
    MOVE = "live move requested"
    TWO = "two at once"


WEIGHTS = {
    Kind.WORKER: 17,
    Kind.AGENT: 8,
    Kind.STOP: 10,
    Kind.HANG: 3,
    Kind.DELETED: 8,
    Kind.EVICTED: 5,
    Kind.POWER: 5,
    Kind.PARTITION: 6,
    Kind.OPERATOR: 9,
    Kind.DISK: 6,
    Kind.MOVE: 8,
    Kind.TWO: 15,
}
NODE_KINDS = frozenset({Kind.POWER, Kind.PARTITION})
PAIRED = (Kind.WORKER, Kind.STOP, Kind.AGENT, Kind.DELETED, Kind.OPERATOR, Kind.MOVE, Kind.DISK)
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


def plan(seed: int, count: int) -> list[Fault]:
    """``count`` faults: each kind once if there is room for all, the others as their weights say, in any order."""
    source = random.Random(seed)
    every = list(Kind)
    source.shuffle(every)
    more = source.choices(list(WEIGHTS), list(WEIGHTS.values()), k=max(0, count - len(every)))
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
