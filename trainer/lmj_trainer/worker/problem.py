"""Why a checkpoint could not be written, and when the next is begun for that reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from lmj_trainer.store.port import RenewableError

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 60.0
"""Seconds from one that the store's refusal cost to the next: they double."""


@dataclass(frozen=True)
class Problem:
    """Of one checkpoint."""

    text: str
    refused: bool = False
    """The store refused what requests are signed with, and that may be renewed any time."""

    @classmethod
    def of(cls, what: str, error: Exception) -> Problem:
        """``what`` was done when ``error`` came."""
        return cls(f"{what}: {error}", isinstance(error, RenewableError))


class Renewal:
    """After a refusal the next checkpoint is begun sooner than it would be due: a Secret is renewed at any time, and is seen at another in each
    pod. One thread tells what came of checkpoints, and any may ask.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause = 0.0
        self._at: float | None = None

    def came(self, problem: Problem | None) -> None:
        """What came of the newest; None: it is written."""
        if problem is None or not problem.refused:
            self._pause, self._at = 0.0, None
            return
        self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)
        self._at = self._clock() + self._pause

    @property
    def due(self) -> bool:
        """Whether another is to be begun, whatever the step."""
        at = self._at
        return at is not None and self._clock() >= at
