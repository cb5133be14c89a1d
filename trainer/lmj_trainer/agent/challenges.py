"""What requests are signed over so that none counts twice: random words of this process, each for a while."""

import secrets
import time
from collections.abc import Callable

MOST_REQUESTS = 1000
"""After so many there is another challenge: what was used is remembered for as long as it could be used again."""
LONGEST_SECONDS = 300.0
"""After so long there is another challenge. One counts until the next but one: a request that is held back on its way is worth nothing then."""


class Challenges:
    """Of one agent. Judged by its own clock alone; callers have none that matters."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin(clock())
        self._before, self._used_before = "", set[str]()

    @property
    def current(self) -> str:
        """What the next requests are to be signed over."""
        self._renew()
        return self._now

    def is_open(self, challenge: str, nonce: str) -> bool:
        """Whether a request signed over ``challenge`` with ``nonce`` would count."""
        self._renew()
        used = self._used_with(challenge)
        return used is not None and nonce not in used

    def use(self, challenge: str, nonce: str) -> None:
        """Such a request counts, from now on no other. Raises KeyError: it does not count."""
        used = self._used_with(challenge)
        if used is None or nonce in used:
            raise KeyError(nonce)
        used.add(nonce)

    def _used_with(self, challenge: str) -> set[str] | None:
        if challenge == self._now:
            return self._used
        return self._used_before if challenge and challenge == self._before else None

    def _renew(self) -> None:
        now = self._clock()
        age = now - self._since
        full = len(self._used) >= MOST_REQUESTS or len(self._used_before) >= 2 * MOST_REQUESTS
        if age < LONGEST_SECONDS and not full:
            return
        kept = age < 2 * LONGEST_SECONDS
        self._before, self._used_before = (self._now, self._used) if kept else ("", set[str]())
        # The next began when this one was over, though nobody asked then: else this one would count for as much longer.
        self._begin(min(now, self._since + LONGEST_SECONDS) if kept else now)

    def _begin(self, since: float) -> None:
        self._now, self._used, self._since = secrets.token_urlsafe(16), set[str](), since
