"""The port: what the pipeline needs of a transport."""

from collections.abc import Mapping
from typing import Protocol

from lmj_trainer.transport.envelope import Envelope
from lmj_trainer.transport.inbox import Inbox


class Transport(Protocol):
    """Sends envelopes to ranks of the current view; what arrives goes into :attr:`inbox`. One for the life of a worker."""

    address: str
    inbox: Inbox

    def join(self, view: int, rank: int, peers: Mapping[int, str]) -> None:
        """Serve ``view`` as ``rank``. ``peers``: address of every other rank. Links to peers that stay are kept; others are dropped."""

    def send(self, rank: int, envelope: Envelope) -> None:
        """Send and return at once; tensors must not be changed afterwards. A lost peer breaks the inbox's view, nothing is raised."""

    def flush(self, timeout: float) -> None:
        """Wait until all that was sent has been taken (or its peer is lost), at most ``timeout`` seconds."""

    def close(self) -> None:
        """End all links."""
