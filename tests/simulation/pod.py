"""A pod with its agent and worker, as a few values."""

from dataclasses import dataclass, field

from lmj_api.cut import Cut
from lmj_api.protocol import Holding, MachineNotice, Recut, Snapshots, WorkerPhase, WorkerState
from lmj_api.view import Member, View

ALIVE = (WorkerPhase.STARTING, WorkerPhase.READY, WorkerPhase.FOLLOWING, WorkerPhase.RUNNING)


class Violation(AssertionError):  # noqa: N818
    """An invariant was broken."""


@dataclass
class Pod:
    name: str
    rank: int | None
    """None: a standby, until a worker is started in it."""
    serial: int
    created: float
    standby: bool = False
    """It began as one: that is all that its name says."""
    warm: bool = False
    listed: bool = True
    """Its labels do not call it a standby."""
    worker: WorkerState = field(default_factory=WorkerState)
    view: View | None = None
    draining: bool = False
    told_to_end: float | None = None
    """When somebody deleted it."""
    hurried: bool = False
    """Its grace is short, or its node ends all pods soon."""
    disrupted: str | None = None
    """Why the cluster ended it."""
    forced: bool = False
    """That was by force: it is not in the cluster any more, and its processes live for a moment yet."""
    staying: bool = False
    """The operator said that it may stay for a while, should it be told to end."""
    gone: bool = False
    reachable: bool = True
    cut: bool = False
    """There is no way from the operator to its machine; it does not know it from one without power."""
    unreachable_since: float | None = None
    step: int | None = None
    """Committed steps in the pod's memory, which outlives its workers; None: nothing restored yet."""
    notice: MachineNotice | None = None
    """Its cloud said that the machine is taken away."""
    dark: bool = False
    """Its node has no power: nothing happens in it."""
    updated: float | None = None
    """When its process took its last step, as a follower too; None: it took none."""
    trained_in: int = 0
    """The view of that, as a member."""
    prepared: bool = False
    """The memory also has all gradients of the next step."""
    follower: Member | None = None
    """Who is to follow its worker."""
    layers: Cut | None = None
    """How the layers are cut for it."""
    recut: Recut | None = None
    """Who is to follow parts of its worker's state, in another cut."""
    sources: frozenset[str] = frozenset()
    """Pods whose parts its worker follows."""
    told: frozenset[str] = frozenset()
    """Those of them that have said that they are prepared."""
    deserted: bool = False
    """It follows on, but its source has let go of it and it has not heard of that."""
    handover: int = 0
    """The view that its worker is to leave for its follower."""
    pause: int = 0
    """The view that all are to leave at the next boundary."""
    node: str | None = "node"
    """None: no node takes it."""
    known: set[int] = field(default_factory=set)
    """Checkpoints that its agent knows: those that it found when it looked, and those that its own worker made as rank 0 since."""
    scanned: bool = False
    """Its agent has looked through the checkpoints."""
    looked: int = 0
    """The newest view that was over when it last looked."""
    look: tuple[int, tuple[str, ...]] | None = None
    """What it is to look for and has not yet, because storage does not answer: the view that is over, and names."""
    own: list[int] = field(default_factory=list)
    """Steps of the snapshots of its rank in its memory, newest first."""
    kept: list[int] = field(default_factory=list)
    """Those of the rank before."""
    snapshots_wanted: bool = False

    @property
    def snapshots(self) -> Snapshots | None:
        return Snapshots(own=list(self.own), kept=list(self.kept)) if self.snapshots_wanted else None

    @property
    def holding(self) -> Holding | None:
        return None if self.step is None else Holding(step=self.step, prepared=self.prepared)
