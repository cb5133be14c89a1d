"""The newest snapshot that all ranks can have out of memory, their own or their neighbours'."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmj_api.protocol import Snapshots
from lmj_api.topology import Topology


@dataclass(frozen=True, slots=True)
class Common:
    """A snapshot of every rank."""

    step: int
    """Committed steps of it."""
    fetched: tuple[int, ...]
    """Ranks that get it from the rank that keeps their snapshots, because they have none of their own."""

    def origin(self, topology: Topology) -> str:
        """Where it comes from, in one clause."""
        if not self.fetched:
            return "each rank has its own"
        return " and ".join(f"rank {rank}'s comes from rank {topology.keeper(rank)}" for rank in self.fetched)


def newest_common(snapshots: Sequence[Snapshots | None], topology: Topology) -> Common | None:
    """``snapshots``: those in each rank's memory, in order of rank. None: there is no step
    of which every rank has one, or its keeper for it.
    """
    own = [frozenset(has.own if has else ()) for has in snapshots]
    kept = [frozenset(has.kept if has else ()) for has in snapshots]
    for step in sorted(frozenset().union(*own), reverse=True):
        fetched = tuple(rank for rank, steps in enumerate(own) if step not in steps)
        if all(step in kept[topology.keeper(rank)] for rank in fetched):
            return Common(step, fetched)
    return None
