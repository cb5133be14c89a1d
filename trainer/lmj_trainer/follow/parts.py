"""What a source sends to its follower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Facts:
    """What a rank remembers beside its tensors."""

    seconds: float
    evaluated: int
    best_step: int | None
    best_accuracy: float | None


@dataclass(frozen=True)
class Begin:
    """The first part of a stream. It is answered with the step that the follower has already, -1 for none."""

    sender: str
    """Where the source listens."""
    layout: str
    """What lies where in the source's memory: the follower's must be the same."""


@dataclass(frozen=True)
class State:
    """Weights and moments of the groups ``first`` to ``last`` (exclusive), float32 ``[3, elements]``, after ``step`` steps."""

    first: int
    last: int
    step: int
    values: Tensor


@dataclass(frozen=True)
class Gradients:
    """Gradients of ``step``, unclipped, float32 ``[elements]``, from element ``start`` of the array on."""

    step: int
    start: int
    values: Tensor


@dataclass(frozen=True)
class Level:
    """The follower has all that the source has, which is at ``step``: from here on it is told of everything."""

    step: int
    facts: Facts
    digest: str
    """XXH3-128 of weights and moments, hex: the follower has the same, or it is none."""
    committed: tuple[int, float, float] | None
    """How ``step`` was committed, where the source knows: others may have to hear it of the follower."""


@dataclass(frozen=True)
class Prepared:
    """The gradients of ``step`` are complete."""

    step: int


@dataclass(frozen=True)
class Committed:
    """``step`` is to be taken, with its gradients times ``coefficient``, at learning ``rate``."""

    step: int
    coefficient: float
    rate: float
    facts: Facts


@dataclass(frozen=True)
class Over:
    """The last part: the follower takes its source's place, or is needed no more."""

    reason: str


Body = Begin | State | Gradients | Level | Prepared | Committed | Over


@dataclass(frozen=True)
class Part:
    """One message. Parts of a stream are taken in the order of their numbers, from 0."""

    stream: int
    number: int
    body: Body
