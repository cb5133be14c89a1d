"""What a backend can be told to do. Every action may be repeated: the second time changes nothing."""

from dataclasses import dataclass

from lmj_api.cut import Cut
from lmj_api.protocol import Recut
from lmj_api.view import Member, View


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Make the ``serial``-th pod of ``rank``; None: the ``serial``-th standby."""

    rank: int | None
    serial: int
    avoid: tuple[str, ...] = ()
    """Nodes that it must not run on, in order. They say nothing to a backend that has one node."""
    node: str | None = None
    """The node that it must run on; None: any."""
    cut: Cut | None = None
    """How the layers are cut for it; None: as the spec says."""

    def __str__(self) -> str:
        where = f", on {self.node}" if self.node is not None else ""
        where += f", not on {', '.join(self.avoid)}" if self.avoid else ""
        return f"create pod {'s' if self.rank is None else f'r{self.rank}'}-{self.serial}{where}"


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Remove a pod with all of its processes."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"delete pod {self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Have worker ``incarnation`` running in ``pod``; an older one that still runs is ended for it."""

    pod: str
    incarnation: int
    rank: int | None = None
    """The rank that a standby becomes by it; None: the pod has one."""

    def __str__(self) -> str:
        return f"start worker {self.incarnation} in {self.pod}{'' if self.rank is None else f' as rank {self.rank}'}"


@dataclass(frozen=True, slots=True)
class PutView:
    """Tell the agent of ``pod`` the newest view."""

    pod: str
    view: View

    def __str__(self) -> str:
        return f"put view {self.view.number} to {self.pod}"


@dataclass(frozen=True, slots=True)
class LeaveView:
    """Have the worker of ``pod`` leave view ``number`` and all before it, and say what it has in memory."""

    pod: str
    number: int

    def __str__(self) -> str:
        return f"leave view {self.number} in {self.pod}"


@dataclass(frozen=True, slots=True)
class Look:
    """Have the agent of ``pod`` look through the checkpoints again, now that view ``number`` is over and nobody saves any in it."""

    pod: str
    number: int
    names: tuple[str, ...] = ()
    """Checkpoints that were heard of: storage may list them later than another machine has written them."""

    def __str__(self) -> str:
        return f"look through the checkpoints of view {self.number} and before in {self.pod}"


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask ``pod`` to take a checkpoint with its peers and leave."""

    pod: str

    def __str__(self) -> str:
        return f"drain {self.pod}"


@dataclass(frozen=True, slots=True)
class Stay:
    """Let ``pod``, which was told to end, stay for as long as it can: its follower is to take its place."""

    pod: str

    def __str__(self) -> str:
        return f"have {self.pod} stay"


@dataclass(frozen=True, slots=True)
class LetIn:
    """Have the relay of ``pod`` let in that of the worker at ``address``, which is in another pod."""

    pod: str
    address: str
    of: str
    """The other pod."""

    def __str__(self) -> str:
        return f"have {self.pod} let {self.of} in"


@dataclass(frozen=True, slots=True)
class Follow:
    """Have ``follower``, or nobody, follow the worker of ``pod``."""

    pod: str
    follower: Member | None

    def __str__(self) -> str:
        return f"have {self.follower.pod if self.follower is not None else 'nobody'} follow {self.pod}"


@dataclass(frozen=True, slots=True)
class FollowParts:
    """Have the workers of another cut that ``recut`` names, or nobody, follow the worker of ``pod``, each what its stage has of that one's."""

    pod: str
    recut: Recut | None

    def __str__(self) -> str:
        who = ", ".join(m.pod for m in self.recut.followers) if self.recut is not None else ""
        return f"have {who or 'nobody'} follow parts of {self.pod}"


@dataclass(frozen=True, slots=True)
class Pause:
    """Have all of view ``number``, of which ``pod`` is a member, leave it at the next step boundary."""

    pod: str
    number: int

    def __str__(self) -> str:
        return f"pause {self.pod} after view {self.number}"


@dataclass(frozen=True, slots=True)
class HandOver:
    """Have all of view ``number`` leave it at the next step boundary, so that those who follow ``pod`` can take over."""

    pod: str
    number: int

    def __str__(self) -> str:
        return f"hand over {self.pod} after view {self.number}"


@dataclass(frozen=True, slots=True)
class EnlistPod:
    """Have the labels of ``pod``, which began as a standby, call it the ``serial``-th pod of ``rank``."""

    pod: str
    rank: int
    serial: int

    def __str__(self) -> str:
        return f"enlist {self.pod} as rank {self.rank}"


Told = StartWorker | PutView | LeaveView | Look | LetIn | Follow | FollowParts | HandOver | Pause | Stay | Drain
"""What is a word to the agent of its ``pod``."""
Action = CreatePod | DeletePod | EnlistPod | Told
