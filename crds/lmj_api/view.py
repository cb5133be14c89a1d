"""A view: one membership of the group. Numbers only grow; everything a member sends or writes carries one, and older ones are refused."""

from typing import Annotated

from pydantic import Field

from lmj_api.base import Message
from lmj_api.bounds import FIRST, LARGEST, Count, LongLine, Name
from lmj_api.cut import Cut
from lmj_api.topology import Topology

MOST_RANKS = 1024
"""Of a job."""

RankNumber = Annotated[int, Field(ge=0, lt=MOST_RANKS)]
"""What an agent says, or a stored status, may be anything, and how many replicas a view has follows from the highest."""
RankCount = Annotated[int, Field(ge=0, le=MOST_RANKS)]
"""Ranks, or their replicas or stages: something is made for each."""


class Member(Message):
    """One rank of a view."""

    rank: RankNumber
    """The rank."""
    pod: Name
    """Pod that the rank runs in."""
    incarnation: Annotated[int, Field(ge=1, le=LARGEST)]
    """Which worker process of that pod, from 1: a restarted worker is another member."""
    address: Name
    """Where its worker listens for RPC, as the worker published it."""


class Resume(Message):
    """The state that a view starts from."""

    step: Count
    """Committed steps so far; 0 is the beginning."""
    checkpoint: Name | None = None
    """Folder of the checkpoint to load, relative to the job's checkpoint folder. None: what the members have in memory; with step 0,
    initial weights where they have nothing."""
    believed: bool = True
    """False: whatever the members have in memory, it failed too often: the checkpoint is loaded, or the weights are initialised, where a
    member has a state of this step too."""
    told_by: RankNumber = 0
    """A rank that has this step for certain. Others may be one behind, with its gradients: they hear from it how it was committed."""
    snapshot: bool = False
    """Take the snapshot of ``step`` out of memory: each rank its own."""
    fetched: Annotated[list[RankNumber], FIRST, Field(max_length=MOST_RANKS)] = []
    """With ``snapshot``: ranks that have none of this step. The next rank, cyclically, has theirs and sends it to them."""
    common_snapshot: Count | None = None
    """Without ``snapshot``: step of the newest that all have in memory. Later ones, which somebody lacks, are forgotten: so this one stays until
    the next is everywhere."""

    @property
    def goes_on(self) -> bool:
        """Whether the members go on from the newest step that they have in memory: nothing durable, and no snapshot, can be newer."""
        return self.step > 0 and self.checkpoint is None and not self.snapshot


class View(Message):
    """One membership of the group."""

    number: Annotated[int, Field(ge=1, le=LARGEST)]
    """Number of the view."""
    members: Annotated[list[Member], FIRST, Field(min_length=1, max_length=MOST_RANKS)]
    """All ranks, in order of rank: the first leads."""
    cut: Cut | None = None
    """How the layers are cut in it: all members are of this cut. None: a view of an earlier version, which had the spec's."""
    resume: Resume
    """The state that it starts from."""
    reason: LongLine
    """Why this view was formed, in one sentence."""

    def topology(self, stages: int) -> Topology:
        """Which replicas are in it. ``stages``: of a view that does not say how its layers are cut."""
        return Topology.of_view(self.cut.stages if self.cut is not None else stages, [m.rank for m in self.members])

    def is_in(self, stages: int) -> bool:
        """Whether the layers are in so many stages in it, as far as is known."""
        return self.cut is None or self.cut.stages == stages
