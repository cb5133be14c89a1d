"""One process's part of a snapshot, and what it keeps for the ranks of other nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from lmj_trainer.launch.memory import folder as memory
from lmj_trainer.launch.memory.exchange import Exchange, Files
from lmj_trainer.launch.memory.place import Place

log = logging.getLogger("lmj.memory")


class Taker:
    """Takes the parts of one process."""

    def __init__(self, place: Place) -> None:
        self._place, self._exchange = place, Exchange(place)

    def take(self, step: int, size: Callable[[], int], save: Callable[[Path], None], own: str) -> None:
        """Take the part of the snapshot of ``step``. All ranks call it after the same steps.

        ``size``: bytes of what all ranks have. ``save``: writes this process's files into a folder. ``own``: a regular expression for
        the names of those that are this rank's alone. What goes wrong is said, and the script goes on: a failure goes back to the
        snapshot before.
        """
        place, writing, given = self._place, None, {}
        try:
            needed = size() if place.part == 0 else 0
            writing = memory.begin(
                place.folder, step, place.view, part=place.part, parts=place.parts, world=place.world, size=needed
            )
            save(writing.site)
            given = writing.own(place.rank, own)
        except Exception as error:  # noqa: BLE001 - whatever it is, training must not end by it
            _give_up(writing, step, error)
            writing = None
        # Outside of what may fail here alone: all ranks meet in it.
        taken = self._exchange.swap(given)
        if writing is None:
            return
        try:
            self._add(writing, taken)
            writing.complete()
        except Exception as error:  # noqa: BLE001 - as above
            _give_up(writing, step, error)

    def _add(self, writing: memory.Writing, taken: Mapping[int, Files]) -> None:
        """Ranks of other nodes; a node's processes share them among themselves."""
        node, parts = self._place.rank // self._place.parts, self._place.parts
        for rank, files in taken.items():
            if rank // parts != node and rank % parts == self._place.part:
                writing.add(rank, files)


def _give_up(writing: memory.Writing | None, step: int, error: Exception) -> None:
    if writing is not None:
        writing.discard()
    text = " ".join(str(error).split())
    log.warning("the snapshot of step %d in memory failed: %s; the script goes on without it", step, text)
