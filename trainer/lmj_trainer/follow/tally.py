"""What a follower has taken so far, for those who wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from lmj_api.protocol import Copied


class Tally:
    """Of one stream."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``size``: bytes of the whole state. ``clock``: in seconds."""
        self._size, self._clock = size, clock
        self._done = self._gradients = 0
        self._step: int | None = None
        self._level: tuple[int, str] | None = None
        self._begun: float | None = None
        """When the first part was there."""
        self._first = 0
        """Bytes of that: what came before the clock."""

    def state(self, size: int, step: int) -> None:
        """``size`` bytes more of the state are there, of ``step``."""
        self._done, self._step = self._done + size, step
        if self._begun is None:
            self._begun, self._first = self._clock(), size

    def gradients(self, size: int) -> None:
        """``size`` bytes of gradients came."""
        self._gradients += size

    def committed(self, step: int) -> None:
        """``step`` was committed."""
        self._step = step

    def in_sync(self, step: int, digest: str) -> None:
        """All of ``step`` is there."""
        self._step, self._level = step, (step, digest)

    @property
    def told(self) -> Copied:
        """All of it."""
        step, digest = self._level if self._level is not None else (None, None)
        return Copied(
            done=self._done,
            size=self._size,
            gradients=self._gradients,
            step=self._step,
            eta_seconds=self._eta(),
            in_sync_step=step,
            digest=digest,
        )

    def _eta(self) -> float | None:
        after = self._done - self._first
        if self._level is not None or self._begun is None or after <= 0:
            return None
        return max(0, self._size - self._done) * (self._clock() - self._begun) / after
