"""How fast a follower is sent the state: as fast as training beside it can bear, where nobody waits for the copy."""

from __future__ import annotations

import time
from collections.abc import Callable

_MOST_RATE, _MOST_SECONDS = 300e6, 4.0
"""Bytes a second of a copy within one machine, or a fast network: it reads and writes the memory that training does, and no step is to be much
longer for it. It is faster where it would take longer than so many seconds."""
_BOUND_SECONDS = 60.0
"""A copy that has time takes no longer than this for all of its bytes, however slow steps are beside it,"""
_BOUND_STEPS = 12
"""and no more steps than this: with each one more the follower is sent more gradients, which cost what the copy does."""
_LEAST_RATE = 20e6
"""Bytes a second that no step gets longer for: about 2% of one core, at both ends together."""
_STEPS = 4
"""Steps in which a copy that has time is sent, before it is known what it costs: so each brings less than the gradients of a step, which the
follower is sent for every step from then on."""
_LONG, _EVEN = 1.05, 1.025
"""Usual steps that one beside the copy may take; and what it takes at most where twice the rate would cost no more than that."""


class CopyPace:
    """Of one copy. One that is not ``gentle`` always has the highest rate: somebody waits for it, as for a rank that moves. A gentle one has it
    while no step is under way. During steps it begins at a rate that is sure to be low; each step beside it halves or doubles that, by what it
    took, within bounds: it ends in bounded time.
    """

    def __init__(
        self, size: int, *, gentle: bool, usual: Callable[[], float | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``size``: bytes of all that is copied. ``usual``: tells the seconds that a step takes, None while that is not known; it is asked
        until it is, and not again. ``clock``: in seconds.
        """
        self._most = max(_MOST_RATE, size / _MOST_SECONDS)
        self._least = max(_LEAST_RATE, size / _BOUND_SECONDS)
        self._size, self._gentle, self._usual, self._clock = size, gentle, usual, clock
        self._step: float | None = usual() if gentle else None
        """Seconds that one takes without the copy."""
        self._share = 1 / _STEPS
        """Part of the whole that is sent in a step."""
        self._under_way = self._beside = False
        """A step is; and the copy was under way when it began."""
        self._at: float | None = None
        """Until when what may have gone was counted; None: the copy has not begun."""
        self._may_have_gone = 0.0

    @property
    def rate(self) -> float:
        """Bytes a second."""
        if not self._gentle or not self._under_way:
            return self._most
        wanted = 0.0 if self._step is None else self._share * self._size / self._step
        return min(self._most, max(self._least, wanted))

    def begin(self) -> None:
        """The copy begins."""
        self._at = self._clock()

    def wait(self, sent: int) -> float:
        """Seconds until more may go than the ``sent`` bytes that have gone, at the present rate. That may change meanwhile."""
        self._count()
        return max(0.0, (sent - self._may_have_gone) / self.rate)

    def step_begins(self) -> None:
        """Training goes on with a step."""
        self._count()
        if self._gentle and self._step is None:
            self._step = self._usual()
        self._under_way, self._beside = True, self._at is not None

    def step_ends(self, seconds: float | None) -> None:
        """It took so many ``seconds``; None: it is given up."""
        self._count()
        self._under_way = False
        if seconds is None or self._step is None or not self._beside:
            return
        longer = seconds / self._step
        if longer > _LONG:
            self._share = max(1 / _BOUND_STEPS, self._share / 2)
        elif longer <= _EVEN:
            self._share *= 2

    def _count(self) -> None:
        if self._at is not None:
            now = self._clock()
            self._may_have_gone += (now - self._at) * self.rate
            self._at = now
