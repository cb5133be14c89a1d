"""The ranks of the current view, as one of them reaches the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lmj_trainer.transport.envelope import Envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmj_api.topology import Topology
    from lmj_trainer.transport.envelope import Kind
    from lmj_trainer.transport.port import Transport


class Group:
    """Sends and takes messages of the current view. All methods are for the compute thread; they raise ViewBrokenError when the view breaks."""

    def __init__(self, transport: Transport, rank: int, topology: Topology, patience: float) -> None:
        """``patience``: seconds after which a message that does not come breaks the view."""
        self.rank, self.topology = rank, topology
        self._transport, self._patience = transport, patience
        self.waited = 0.0
        """Seconds for which the compute thread has waited for messages of others."""

    def enter(self, topology: Topology) -> None:
        """A view of ``topology`` begins."""
        self.topology = topology

    @property
    def leader(self) -> int:
        """The rank that decides for all."""
        return self.topology.leader

    @property
    def leads(self) -> bool:
        """Whether this rank decides for all."""
        return self.rank == self.leader

    @property
    def others(self) -> Sequence[int]:
        """The ranks beside the leader, in order."""
        return self.topology.followers

    @property
    def view(self) -> int:
        """The number of the view."""
        return self._transport.inbox.view

    def send(self, rank: int, kind: Kind, step: int, index: int = 0, payload: Any = None) -> None:
        """Send to ``rank``."""
        self._transport.send(rank, Envelope(self.view, kind, step, index, self.rank, payload))

    def tell(self, kind: Kind, step: int, index: int = 0, payload: Any = None) -> None:
        """Send the leader's word to all others, those of its own replica last."""
        for rank in self.topology.audience:
            self.send(rank, kind, step, index, payload)

    def take(self, kind: Kind, step: int, sender: int | None = None, index: int = 0, *, promised: bool = False) -> Any:
        """Wait for a message of ``sender`` (None: the leader). ``promised``: for a while even when the view is to be left meanwhile."""
        source = self.leader if sender is None else sender
        begin = time.monotonic()
        try:
            return self._transport.inbox.take(kind, step, index, source, self._patience, promised=promised)
        finally:
            self.waited += time.monotonic() - begin

    def poll(self, kind: Kind, step: int, sender: int, index: int) -> bool:
        """Whether a message is there to be taken."""
        return self._transport.inbox.poll(kind, step, index, sender)

    def check(self) -> None:
        """Raise ViewBrokenError when the view is to be left."""
        self._transport.inbox.check()

    def flush(self, seconds: float) -> None:
        """Wait until all that was sent has arrived, at most for ``seconds``."""
        self._transport.flush(seconds)
