"""What uploads and downloads tell while they go on, and in the end."""

from dataclasses import dataclass, field
from typing import Protocol

BATCH = 256
"""Files that are asked about at once: one way there and back for all of them."""


class Watcher(Protocol):
    """Who is told how far it is."""

    def total(self, files: int, size: int) -> None:
        """There are so many files, of so many bytes."""

    def moved(self, size: int) -> None:
        """So many bytes more are there, sent now or there before."""

    def file(self) -> None:
        """One file more is there."""

    def say(self, line: str) -> None:
        """Something that a person should know."""


@dataclass
class Tally:
    """What came of it."""

    sent: int = 0
    """Files that went, in whole or in part."""
    there: int = 0
    """Files that were there already."""
    bytes_sent: int = 0
    links: int = 0
    special: int = 0
    done: set[str] = field(default_factory=set)
    """Files that are settled: a connection that breaks does not begin again with them."""
