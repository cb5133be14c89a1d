"""What came of a view, for one launcher."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lost:
    """The view is over, and this launcher is ready for the next."""

    message: str
    rank: int | None = None
    """Who is to blame, when it is one."""


@dataclass(frozen=True)
class Failed:
    """A process of this node failed first."""

    code: int
    """Its exit code; negative: the signal that ended it."""

    @property
    def status(self) -> int:
        """What the launcher exits with: as a shell says it."""
        return self.code if self.code > 0 else 128 - self.code


@dataclass(frozen=True)
class Completed:
    """All processes of all members ended with 0."""


@dataclass(frozen=True)
class Stopped:
    """The view was left in order."""

    message: str


Outcome = Lost | Failed | Completed | Stopped
