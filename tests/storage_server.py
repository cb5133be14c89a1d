"""What tests want of a server of object storage, whichever it is."""

from typing import Protocol


class StorageServer(Protocol):
    """One that runs meanwhile."""

    @property
    def environment(self) -> dict[str, str]:
        """What leads a program to it."""

    def bucket(self, name: str) -> str:
        """Make it, if it is not there; its URI."""
