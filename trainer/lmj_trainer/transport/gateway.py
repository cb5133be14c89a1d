"""The port: what a transport needs of a relay, which alone reaches others, and which alone others reach."""

from collections.abc import Collection
from typing import Protocol


class Gateway(Protocol):
    """All methods raise ConnectionError: it did not do it, or is gone. Any thread may use it."""

    def publish(self, port: int) -> str:
        """Let others connect to ``port`` of the loopback interface; under which address (``scheme://HOST:PORT…``, the host this pod's)."""

    def reach(self, address: str) -> str:
        """Where the peer at ``address`` is to be connected to (``HOST:PORT``), instead of there."""

    def forget(self, address: str) -> None:
        """That peer is not connected to any more."""

    def admit(self, addresses: Collection[str]) -> None:
        """Let the peers at these addresses connect, and no others."""
