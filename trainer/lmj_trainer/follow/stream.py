"""What a source knows of its follower: what it was sent, what is on its way, and what is due."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import deque

from lmj_trainer.follow.copy_pace import CopyPace
from lmj_trainer.state.finals import Finals
from lmj_trainer.state.share import Share

WINDOW = 24 << 20
"""Bytes that may be on their way."""
LEAST_COPY_WINDOW = 6 << 20
"""Bytes on their way before which no more of the state is sent where the network is slow: a step's gradients, for which training waits, come
behind them."""
COPY_AHEAD_SECONDS = 0.04
"""The same where it is fast: what goes in so long, so that nothing waits for an answer that takes its time."""
SLOW_RATE = 200e6
"""Bytes a second: below, gradients that wait are packed, because that takes half as long as they do. A network of 1 Gbit/s is slow, and none
of 10, nor two relays on busy cores."""
MEASURED_BYTES = 1 << 20
"""Of what is less it is the time of an answer that is seen, and not the rate."""


class Stream:
    """One follower, from Begin on. Used by the thread that has the source's turn."""

    def __init__(self, address: str, share: Share, pace: CopyPace) -> None:
        """``share``: what the follower takes of the state; ``pace``: how fast it is sent that."""
        self.address, self.share, self.pace = address, share, pace
        self.number = secrets.randbits(63)
        self.parts = itertools.count()
        self.units = 0
        """Units of the share whose state was sent: of every later step their gradients are sent too."""
        self.in_sync = False
        self.told = False
        """It was told what waits to be recorded of earlier steps."""
        self.finals: Finals | None = None
        """Of the step that is under way, once something of it is final."""
        self.due: deque[tuple[int, slice | None]] = deque()
        """What is to be sent of it, in this order: gradients of a span, and that they are complete (None). The first may be about to go."""
        self.under_way = 0
        """Bytes that the follower has not taken into its memory yet."""
        self.taken = 0
        """Bytes that it has taken."""
        self.waiting = 0
        """Parts that had arrived and were not taken yet, by its newest answer; 0 before the first."""
        self.rate = 0.0
        """Bytes a second at which the newest part went, with all that were on their way before it; 0: not known yet."""
        self.copied = self.forwarded = 0
        """Bytes of tensors that were sent: of the state, and of gradients."""
        self.refusal: str | None = None
        """Why the follower, which was told to leave, took no more."""
        self.over = False
        self.stopped = threading.Event()

    @property
    def complete(self) -> bool:
        """Whether all of the share was sent."""
        return self.units == len(self.share.units)

    def took(self, size: int, seconds: float) -> None:
        """The follower has taken ``size`` bytes, all that were on their way, in so many ``seconds``."""
        if size >= MEASURED_BYTES:
            self.rate = size / max(seconds, 1e-6)

    @property
    def copy_may_go(self) -> bool:
        """Whether more of the state is to be sent now."""
        return self.under_way < min(WINDOW, max(LEAST_COPY_WINDOW, COPY_AHEAD_SECONDS * self.rate))

    @property
    def waits_for_network(self) -> bool:
        """Whether what is due first has to wait because the network is slow: its follower has taken all that arrived, and waits too."""
        return not self.may_go and self.waiting == 0 and self.rate < SLOW_RATE

    @property
    def may_go(self) -> bool:
        """Whether what is due first is to be sent now. That gradients are complete is said when the follower has them all: if it is let go
        before, they may change while they are on their way, and it must not take those for the step's.
        """
        return bool(self.due) and self.under_way < (1 if self.due[0][1] is None else WINDOW)
