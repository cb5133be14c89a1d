"""Since when things are as they are, by the own clock: the times in objects are by those of others, which may be hours ahead or behind.

What was so before this process began counts from when it first looked.
"""

from collections.abc import Callable, Collection, Hashable


class Sightings:
    """Remembers for each thing how it was seen last, and when it was first seen so."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[Hashable, float]] = {}

    def since(self, of: str, what: str, state: Hashable) -> float:
        """Since when ``what`` of the object ``of`` is ``state``, which it is now."""
        known = self._known.get((of, what))
        if known is None or known[0] != state:
            known = self._known[of, what] = state, self._clock()
        return known[1]

    def keep(self, objects: Collection[str]) -> None:
        """Forget all others."""
        self._known = {key: known for key, known in self._known.items() if key[0] in objects}
