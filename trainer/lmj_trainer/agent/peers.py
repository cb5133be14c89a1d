"""Whom the pod's relay is to let in because the operator said so."""

import asyncio
from collections.abc import Sequence

from lmj_api.view import MOST_RANKS, View
from lmj_trainer.relay.address import Address


class Peers:
    """Lives in one event loop."""

    def __init__(self) -> None:
        self._sources: dict[str, None] = {}
        self._members: Sequence[str] = ()
        self._view = 0
        """The number of the newest one."""
        self.changed = asyncio.Event()
        """Set at the next change; each has its own, so take it before you look."""

    def follow(self, address: str) -> None:
        """Let the relay of the worker at ``address`` in, which this pod's is to follow before a view names both. Of more than a job can have
        the newest count. Raises ValueError: it is behind none.
        """
        Address.of(address)
        if address in self._sources:
            return
        self._sources[address] = None
        while len(self._sources) > MOST_RANKS:
            del self._sources[next(iter(self._sources))]
        self._tell()

    def join(self, view: View) -> None:
        """Let the relays of the members of ``view`` in, and no others of an older one. The worker names them too, but may be busy until then.

        Whoever is in a new view follows nobody any more: those that it followed count as members, or not at all.
        """
        members = [member.address for member in view.members if _is_relayed(member.address)]
        sources: dict[str, None] = {} if view.number > self._view else self._sources
        self._view = view.number
        if members != self._members or sources != self._sources:
            self._members, self._sources = members, sources
            self._tell()

    @property
    def addresses(self) -> list[str]:
        """All of them."""
        return [*self._members, *self._sources]

    def _tell(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


def _is_relayed(address: str) -> bool:
    try:
        Address.of(address)
    except ValueError:
        return False
    return True
