"""Which rank computes what, and where each part of the state is: nothing else knows how ranks are numbered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

FIRST: Final = 0
"""The rank that leads where all are there."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One member of the group."""

    number: int
    """From 0, below the world size."""
    stage: int
    """Which part of the model it computes, from 0."""
    replica: int
    """Which copy of the model its stage belongs to, from 0."""


@dataclass(frozen=True, slots=True)
class Topology:
    """``replicas`` copies of a pipeline of ``stages``. Ranks are numbered replica by replica, so that a job with fewer replicas has the first
    ranks of one with more. A part of the state is the parameters of a stage, with their moments: part and stage have one number.
    """

    stages: int
    replicas: int = 1
    absent: frozenset[int] = frozenset()
    """Replicas that are not in the view. The others keep the numbers of their ranks."""

    @classmethod
    def of_view(cls, stages: int, ranks: Iterable[int]) -> Topology:
        """That of a view of ``ranks``, whatever number of replicas the job has by now."""
        there = frozenset(ranks)
        return cls(stages, max(there) // stages + 1).among(there)

    def among(self, ranks: Iterable[int]) -> Topology:
        """That of the replicas of which all ranks are among ``ranks``."""
        there = frozenset(ranks)
        return replace(self, absent=frozenset(r for r in range(self.replicas) if not there.issuperset(self.ranks_of(r))))

    @property
    def present(self) -> Sequence[int]:
        """The replicas in the view, in order."""
        return _present(self.replicas, self.absent)

    def ranks_of(self, replica: int) -> range:
        """The ranks of ``replica``, in order of stage."""
        return range(replica * self.stages, (replica + 1) * self.stages)

    @property
    def ranks(self) -> Sequence[int]:
        """The numbers of those in the view, in order."""
        return _ranks(self.stages, self.replicas, self.absent)

    @property
    def size(self) -> int:
        """Number of ranks in the view: the world size."""
        return self.stages * len(self.present)

    @property
    def leader(self) -> int:
        """The rank that decides for all: it records, commits and writes manifests."""
        return self.ranks[0]

    @property
    def followers(self) -> Sequence[int]:
        """All ranks but the leader, in order."""
        return self.ranks[1:]

    @property
    def audience(self) -> Sequence[int]:
        """All ranks but the leader, in the order in which it tells them something: one of each other replica first, its own replica last.

        Of a replica that lost a rank nobody goes on. So when the leader dies in between, who knows of a commit must be in another one.
        """
        return _audience(self.stages, self.replicas, self.absent)

    def rank(self, number: int) -> Rank:
        """What the rank of this number is, in the view or not. Raises IndexError when there is none."""
        if not 0 <= number < self.stages * self.replicas:
            raise IndexError(f"rank {number}: there are ranks 0 to {self.stages * self.replicas - 1}")
        replica, stage = divmod(number, self.stages)
        return Rank(number, stage, replica)

    def stage(self, rank: int) -> int:
        """The stage that ``rank`` computes, of any number of replicas: a pod may be of one that the job has no more."""
        return rank % self.stages

    def replica(self, rank: int) -> int:
        """The replica that ``rank`` belongs to, of any number of them: as :meth:`stage`."""
        return rank // self.stages

    def before(self, rank: int) -> int | None:
        """The rank of the stage before, in the same replica; None: it is the first."""
        return rank - 1 if self.stage(rank) > 0 else None

    def after(self, rank: int) -> int | None:
        """The rank of the next stage, in the same replica; None: it is the last."""
        return rank + 1 if self.stage(rank) < self.stages - 1 else None

    def last(self, rank: int) -> int:
        """The rank of the last stage in the replica of ``rank``."""
        return rank - self.stage(rank) + self.stages - 1

    @property
    def parts(self) -> Sequence[int]:
        """Parts of the state: together they are all of it."""
        return range(self.stages)

    def part(self, rank: int) -> int:
        """The part of the state that ``rank`` holds."""
        return self.stage(rank)

    def holders(self, part: int) -> Sequence[int]:
        """The ranks in the view that hold ``part``, in order."""
        return self.ranks[part :: self.stages]

    def writer(self, part: int) -> int:
        """The rank that writes ``part`` into a checkpoint: of each part one of another replica, as far as there are so many."""
        return self.holders(part)[part % len(self.present)]

    @property
    def writers(self) -> Sequence[int]:
        """The ranks that write, in the order of their parts."""
        return [self.writer(part) for part in self.parts]

    def keeper(self, rank: int) -> int:
        """The rank that keeps the snapshots of ``rank`` beside its own."""
        return (rank + 1) % self.size

    def kept(self, rank: int) -> int:
        """The rank whose snapshots ``rank`` keeps: the inverse of :meth:`keeper`."""
        return (rank - 1) % self.size


# A plan and a trainer ask for these once for each rank.
@lru_cache
def _present(replicas: int, absent: frozenset[int]) -> tuple[int, ...]:
    return tuple(replica for replica in range(replicas) if replica not in absent)


@lru_cache
def _ranks(stages: int, replicas: int, absent: frozenset[int]) -> tuple[int, ...]:
    return tuple(replica * stages + stage for replica in _present(replicas, absent) for stage in range(stages))


@lru_cache
def _audience(stages: int, replicas: int, absent: frozenset[int]) -> tuple[int, ...]:
    leading, *others = _present(replicas, absent)
    elsewhere = [replica * stages + stage for stage in range(stages) for replica in others]
    return (*elsewhere, *(leading * stages + stage for stage in range(1, stages)))
