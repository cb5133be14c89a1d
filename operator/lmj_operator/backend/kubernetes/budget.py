"""How often something expensive is done, by all jobs of an operator together."""


class Budget:
    """``burst`` calls at once, and then one in ``seconds``."""

    def __init__(self, burst: int, seconds: float) -> None:
        self._burst, self._seconds = burst, seconds
        self._left, self._at = float(burst), 0.0

    def take(self, now: float) -> bool:
        """Whether a call may be made ``now``; then it counts as made."""
        self._left = min(self._burst, self._left + max(0.0, now - self._at) / self._seconds)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
