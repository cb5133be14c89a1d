"""What signals mean to a run in the foreground."""

import signal
from enum import StrEnum

SAME_PRESS_SECONDS = 1.0
"""A Ctrl-C this soon after the first is the same wish: a key that bounces, or one signal that came by two ways."""


class Meaning(StrEnum):
    """What a signal asks for."""

    CHECKPOINT = "take a checkpoint and leave"
    AT_ONCE = "leave at once"
    NOTHING = "nothing that is not done already"


class Leaving:
    """Only a person is in a hurry, and only who presses Ctrl-C again. ``timeout`` and service managers signal the process and then its whole
    group, so one SIGTERM comes twice; what sends it has its own deadline and SIGKILL.
    """

    def __init__(self) -> None:
        self._asked = False
        self._interrupted: float | None = None

    def heard(self, number: int, now: float) -> Meaning:
        """What signal ``number`` means that came at ``now``, by a monotonic clock."""
        first, self._asked = not self._asked, True
        if number == signal.SIGINT:
            if self._interrupted is None:
                self._interrupted = now
            elif now - self._interrupted >= SAME_PRESS_SECONDS:
                return Meaning.AT_ONCE
        return Meaning.CHECKPOINT if first else Meaning.NOTHING
