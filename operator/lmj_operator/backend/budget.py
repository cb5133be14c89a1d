"""How often something expensive is done, by one job, or by all of an operator together; or how much is read of an agent."""


class Budget:
    """``burst`` calls at once, and then one in ``seconds``."""

    __slots__ = ("_at", "_burst", "_left", "_seconds")

    def __init__(self, burst: int, seconds: float) -> None:
        self._burst, self._seconds = burst, seconds
        self._left, self._at = float(burst), 0.0

    def widen(self, more: int, seconds: float) -> None:
        """So many more at once, and from now on one in ``seconds``."""
        self._burst, self._left, self._seconds = self._burst + more, self._left + more, seconds

    def take(self, now: float, calls: int = 1) -> bool:
        """Whether so many calls may be made ``now``, by a clock that nobody sets; then they count as made."""
        # Jobs take turns: one that has waited meanwhile still has an earlier time, which must not be earned again by the next.
        if now > self._at:
            self._left = min(self._burst, self._left + (now - self._at) / self._seconds)
            self._at = now
        if self._left < calls:
            return False
        self._left -= calls
        return True

    def wait(self, now: float) -> float:
        """Seconds from ``now`` until a call may be made."""
        left = min(self._burst, self._left + max(0.0, now - self._at) / self._seconds)
        return max(0.0, (1 - left) * self._seconds - max(0.0, self._at - now)) if left < 1 else 0.0
