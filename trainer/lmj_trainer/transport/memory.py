"""Transport between threads of one process: for tests and for drawing schedules."""

from collections.abc import Callable, Mapping

from lmj_trainer.transport.envelope import Envelope
from lmj_trainer.transport.feed import Done, Feed
from lmj_trainer.transport.inbox import Inbox
from lmj_trainer.transport.parts import Part


class MemoryTransport:
    """The port in memory. ``network`` is shared by all ranks: address → transport."""

    def __init__(self, network: dict[str, "MemoryTransport"], address: str) -> None:
        self.address = address
        self.inbox = Inbox()
        self.feed = Feed()
        self._network = network
        self._peers: dict[int, str] = {}
        network[address] = self

    def listens(self) -> bool:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        return True

    def join(self, view: int, rank: int, peers: Mapping[int, str]) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        self._peers = dict(peers)
        self.inbox.open(view)

    def send(self, rank: int, envelope: Envelope) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        address = self._peers.get(rank)
        peer = self._network.get(address) if address is not None else None
        if peer is None:
            self.inbox.fail(envelope.view, f"rank {rank} ({address or 'not in the view'}) is gone", rank)
        else:
            peer.inbox.put(envelope)

    def keep(self, address: str, lost: Callable[[str], None]) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        if address not in self._network:
            lost(f"{address} is gone")

    def drop(self, address: str) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""

    def tell(self, address: str, part: Part, done: Done) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        peer = self._network.get(address)
        if peer is None:
            done(f"{address} is gone", -1)
        else:
            peer.feed.put(part, done)

    def flush(self, timeout: float) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`: nothing is ever under way."""

    def close(self) -> None:
        """See :class:`~lmj_trainer.transport.port.Transport`."""
        self._network.pop(self.address, None)
