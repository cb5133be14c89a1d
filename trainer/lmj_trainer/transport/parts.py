"""What a source sends to its follower."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmj_trainer.state.facts import Facts
from lmj_trainer.state.journal import Line
from lmj_trainer.state.share import Placed
from lmj_trainer.transport.packing import Packed

BEGIN_SECONDS = 60.0
"""For the answer to Begin: a follower does once what a step does before it gives it. Training does not wait for that."""
ROW = 256
"""Elements: the sizes of all hidden layers in use are multiples of it."""


@dataclass(frozen=True)
class Begin:
    """The first part of a stream. It is answered with the step that the follower has already, -1 for none."""

    sender: str
    """Where the source listens."""
    identity: str
    """Of which job, and of which version's memory, the state is: the follower's must be the same."""
    placed: tuple[Placed, ...]
    """The parameters that come, and where they lie in the source's memory: all spans of the stream are in its arrays."""
    frozen: dict[str, str]
    """Digests of the weights that the source does not train, by name: the follower must have the same where it has those."""

    @property
    def names(self) -> frozenset[str]:
        """Of the parameters that come."""
        return frozenset(each.name for each in self.placed)


@dataclass(frozen=True)
class State:
    """Weights and both moments of the units ``first`` to ``last`` (exclusive), which lie together, each float32 ``[elements]``, after
    ``step`` steps.
    """

    first: int
    last: int
    step: int
    values: list[Tensor]


@dataclass(frozen=True)
class Gradients:
    """Gradients of ``step``, unclipped, float32, of ``count`` elements from element ``start`` of the array on.

    A span that is mostly zero (of word embeddings: the words that the batch has not) is sent as rows of ``ROW`` elements.
    """

    step: int
    start: int
    count: int
    values: Tensor | Packed
    """``[count]``, or ``[rows, ROW]``, which are not packed."""
    rows: Tensor | None
    """int64 ``[rows]``, which rows of the span ``values`` are, all others being zero; None: ``values`` are all of it."""

    @property
    def nbytes(self) -> int:
        """Of all its tensors."""
        return self.values.nbytes + (0 if self.rows is None else self.rows.nbytes)

    @classmethod
    def of(cls, step: int, start: int, span: Tensor) -> Gradients:
        """Of ``span``, float32 ``[count]``."""
        if len(span) % ROW == 0 and 2 * int(torch.count_nonzero(span[:: ROW + 1])) < len(span) // ROW:
            # By their bits, for -0.0 is not 0.0.
            bits = span.view(torch.int32).view(-1, ROW)
            rows = ((bits.amax(1) != 0) | (bits.amin(1) != 0)).nonzero()[:, 0]
            if 2 * ROW * len(rows) < len(span):
                return cls(step, start, len(span), span.view(-1, ROW)[rows].cpu(), rows.cpu())
        return cls(step, start, len(span), span.cpu(), None)

    def packed(self) -> Gradients:
        """The same, for a network that is waited for; as it is where that is no less."""
        if isinstance(self.values, Packed) or self.rows is not None:
            return self
        values = Packed.of(self.values)
        return replace(self, values=values) if values.nbytes < self.values.nbytes else self

    @property
    def span(self) -> slice:
        """Where it lies in the source's array."""
        return slice(self.start, self.start + self.count)

    def write(self, span: Tensor) -> None:
        """Into ``span``, float32 ``[count]``. Raises ValueError when packed values are not what they say."""
        if isinstance(self.values, Packed):
            span.copy_(self.values.unpack(self.count))
        elif self.rows is None:
            span.copy_(self.values)
        else:
            span.zero_()
            span.view(-1, ROW)[self.rows] = self.values.to(span.device)


@dataclass(frozen=True)
class InSync:
    """The follower has all that was to come of the source's state, which is at ``step``: from here on it is told of everything."""

    step: int
    facts: Facts
    digest: str
    """XXH3-128 of weights and moments of what came, hex: the follower has the same, or it is none."""
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
    line: str | None
    """What is recorded of it, where that is known: the source may not live to do it."""
    backlog: tuple[Line, ...]
    """With the first: what waits to be recorded of earlier steps."""
    recorded: int
    """All that is to be recorded of steps up to this one is on storage."""
    last: bool = False
    """The follower takes over at this step, and is told so next: it has time for the update while the next view is made."""


@dataclass(frozen=True)
class Abandoned:
    """The source will not commit ``step`` in this view: a follower that leaves need not wait for it."""

    step: int


@dataclass(frozen=True)
class Over:
    """The last part: the follower takes over, or is needed no more."""

    reason: str


Body = Begin | State | Gradients | InSync | Prepared | Committed | Abandoned | Over


@dataclass(frozen=True)
class Part:
    """One message. Parts of a stream are taken in the order of their numbers, from 0."""

    stream: int
    number: int
    body: Body
