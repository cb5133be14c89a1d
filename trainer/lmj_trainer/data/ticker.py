"""Says how far a long task is, but only when it is long."""

import time
from collections.abc import Callable

SECONDS = 2.0


class Ticker:
    """Passes texts on to ``say``, one every two seconds at most; a task that is done before never says anything."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.say, self._clock, self._last = say, clock, clock()

    def tick(self, text: str) -> None:
        """Says ``text`` if it is time."""
        now = self._clock()
        if now - self._last >= SECONDS:
            self._last = now
            self.say(text)
