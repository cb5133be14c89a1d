"""The port: what the pipeline needs of a transport."""

from collections.abc import Callable, Mapping
from typing import Protocol

from lmj_trainer.transport.envelope import Envelope
from lmj_trainer.transport.feed import Done, Feed
from lmj_trainer.transport.inbox import Inbox
from lmj_trainer.transport.parts import Part


class Transport(Protocol):
    """Sends envelopes to ranks of the current view; what arrives goes into :attr:`inbox`. One for the life of a worker.

    Beside views it carries a stream from a source to its follower: what arrives of one goes into :attr:`feed`.
    """

    address: str
    inbox: Inbox
    feed: Feed

    def listens(self) -> bool:
        """Whether a new peer can reach this one."""

    def join(self, view: int, rank: int, peers: Mapping[int, str]) -> None:
        """Serve ``view`` as ``rank``. ``peers``: address of every other rank. Links to peers that live are kept."""

    def send(self, rank: int, envelope: Envelope) -> None:
        """Send and return at once; tensors must not be changed afterwards. A lost peer, or one that is not
        in the view, breaks the inbox's view if it is the envelope's; nothing is raised.
        """

    def flush(self, timeout: float) -> None:
        """Wait until all that was sent has been taken (or its peer is lost), at most ``timeout`` seconds."""

    def keep(self, address: str, lost: Callable[[str], None]) -> None:
        """Have a link to ``address``, whether or not it is in the view; ``lost`` is told, in any thread, when it broke. Nothing is raised."""

    def drop(self, address: str) -> None:
        """Nothing is told to it any more, nor of it."""

    def tell(self, address: str, part: Part, done: Done) -> None:
        """Send ``part`` to one that is kept, and return at once. ``done`` is told, in any thread, when it was taken there, or why not."""

    def close(self) -> None:
        """End all links."""
