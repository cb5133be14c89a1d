"""Whom the pod's relay is to let in because the operator said so: those that its worker is to follow, before a view names both."""

import asyncio

from lmj_api.view import MOST_RANKS
from lmj_trainer.relay.address import Address


class Sources:
    """Lives in one event loop."""

    def __init__(self) -> None:
        self._addresses: dict[str, None] = {}
        self.changed = asyncio.Event()
        """Set at the next change; each has its own, so take it before you look."""

    def add(self, address: str) -> None:
        """Let the relay of the worker at ``address`` in. Of more than a job can have the newest count. Raises ValueError: it is behind none."""
        Address.of(address)
        if address in self._addresses:
            return
        self._addresses[address] = None
        while len(self._addresses) > MOST_RANKS:
            del self._addresses[next(iter(self._addresses))]
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    @property
    def addresses(self) -> list[str]:
        """All of them."""
        return list(self._addresses)
