"""Most bytes a second of what is written beside training."""

from __future__ import annotations

import threading
import time

_OTHERS = 10
"""How much more another rank may have to write than this one: a stage with the table of tokens, beside one with a layer."""


class Throttle:
    """Of one writer, which calls :meth:`wrote`. Other threads may have it hurry."""

    def __init__(self, mbps: float | None) -> None:
        """``mbps``: megabits a second; None: no limit."""
        self._second_per_byte = 0.0 if mbps is None else 8e-6 / mbps
        self._hurry = threading.Event()
        self._began, self._bytes = 0.0, 0

    def begin(self) -> None:
        """What is written from now on has the limit."""
        self._began, self._bytes = time.monotonic(), 0
        self._hurry.clear()

    def wrote(self, size: int) -> None:
        """Wait until so many more bytes are within the limit, or somebody is in a hurry."""
        self._bytes += size
        due = self._began + self._bytes * self._second_per_byte
        if (left := due - time.monotonic()) > 0:
            self._hurry.wait(left)

    def hurry(self) -> None:
        """Somebody waits: no limit until the next :meth:`begin`."""
        self._hurry.set()

    def longest(self, size: int) -> float:
        """Seconds that the limit may add for any rank, where this one writes ``size`` bytes."""
        return _OTHERS * size * self._second_per_byte
