"""The view line: all launchers of a view are connected to the leader's, so that what happens to one is known to all at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lmj_trainer.launch.words import Word, WordKind

HANDSHAKE_SECONDS = 10.0
HOLD_SECONDS = 30.0
"""A member may be told of a view so much sooner than its leader."""
FINISH_SECONDS = 5.0
"""Members have so long to take a last word."""
MOST_CONNECTIONS = 4096
"""Of a leader, at a time; another is closed at once. A view has at most 1,024 members."""


class BrokenError(Exception):
    """The view did not come about; the text says why."""

    def __init__(self, reason: str, rank: int | None = None) -> None:
        """``rank``: who is to blame, when it is one."""
        super().__init__(reason)
        self.rank = rank


@dataclass
class Life:
    """Signs of life: those of this node, to be passed on, and those of others."""

    own: Callable[[], bool]
    """Whether there were any here since the last call."""
    seen: Callable[[], None]
    """There were some, anywhere in the view."""


class Line(Protocol):
    """A launcher's part of a view line."""

    async def begin(self, seconds: float) -> Word:
        """Wait until all are there; ``START``. Raises BrokenError, also when that takes longer than ``seconds``."""

    def say(self, word: Word) -> None:
        """``DONE``, ``FAILED``, ``STOP`` or ``LEFT``, to the leader."""

    async def next(self) -> Word:
        """What the leader decides: ``LOST``, ``STOP`` or ``COMPLETED``; once."""

    def complete(self) -> None:
        """Tell the others that the script has completed: whoever leads has made that known then."""

    def close(self) -> None:
        """Leave it. What was said arrives, unless this process ends at once."""

    async def closed(self) -> None:
        """Wait until what was said has arrived, or had time to."""


def broken(word: Word) -> BrokenError:
    """What a leader's ``word`` means to a view that has not begun."""
    return BrokenError(word.message, word.rank if word.kind is WordKind.LOST and word.rank >= 0 else None)
