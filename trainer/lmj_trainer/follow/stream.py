"""What a source knows of its follower: what it was sent, what is on its way, and what is due."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from lmj_trainer.follow.finals import Finals
from lmj_trainer.follow.parts import Committed, Prepared

WINDOW = 24 << 20
"""Bytes that may be on their way."""


@dataclass(frozen=True)
class Due:
    """Gradients of a span of the block, for ``step``."""

    step: int
    span: slice


class Stream:
    """One follower, from Begin on. For one thread at a time: whoever has the source's turn."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.number = secrets.randbits(63)
        self.parts = itertools.count()
        self.groups = 0
        """Groups whose state was sent: of every later step their gradients are sent too."""
        self.level = False
        self.finals: Finals | None = None
        """Of the step that is under way, once something of it is final."""
        self.due: deque[Due | Prepared | Committed] = deque()
        """What is to be sent, in this order. The first may be about to go."""
        self.under_way = 0
        """Bytes that the follower has not taken into its memory yet."""
        self.taken = 0
        """Bytes that it has taken."""
        self.lent: dict[int, slice] = {}
        """Spans of the block that are on their way, by the number of their part."""
        self.free = 0
        """Elements of each array, from its start, that are known not to be on their way, nor due."""
        self.copied = self.forwarded = 0
        """Bytes of tensors that were sent: of the state, and of gradients."""
        self.over = False
        self.stopped = threading.Event()

    def put(self, step: int, spans: Iterable[slice]) -> None:
        """Gradients of ``step`` in ``spans`` are due."""
        self.free = 0
        self.due.extend(Due(step, span) for span in spans)

    def forget(self) -> None:
        """The gradients are no step's any more; that a step was committed is told yet."""
        self.finals = None
        self.due = deque(due for due in self.due if isinstance(due, Committed))

    @property
    def may_go(self) -> bool:
        """Whether what is due first is to be sent now. That gradients are complete is said when the follower has them all: if it is let go
        before, they may change while they are on their way, and it must not take those for the step's.
        """
        return bool(self.due) and self.under_way < (1 if isinstance(self.due[0], Prepared) else WINDOW)

    def lend(self, number: int, span: slice) -> None:
        """``span`` of the block is on its way, in part ``number``."""
        self.lent[number], self.free = span, 0

    def count_free(self, size: int) -> int:
        """:attr:`free` as it is now, of ``size`` elements."""
        spans = [*self.lent.values(), *(due.span for due in self.due if isinstance(due, Due))]
        self.free = min((span.start for span in spans), default=size)
        return self.free
