"""What is known of each rank: the pod that stands for it, and the worker that must run there."""

from dataclasses import dataclass, field, replace

from lmj_api.protocol import AgentState, WorkerPhase, WorkerState
from lmj_api.status import FollowerStatus, JobStatus, RankStatus
from lmj_operator.plan.observe.naming import Names
from lmj_operator.plan.observe.observed import Observed, PodObserved, PodPhase

ENDED = (WorkerPhase.DRAINED, WorkerPhase.COMPLETED, WorkerPhase.EXITED)
"""A worker in one of these does nothing any more."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank."""

    rank: int
    serial: int
    """Highest serial that was ever wanted for the rank; 0: none yet."""
    pod: PodObserved | None
    """The pod of that serial, when there is one."""
    seen: bool
    """A pod of that serial was observed, now or before: when it is not there now, it is gone and not just unborn."""
    incarnation: int
    """The worker that must run in the pod, from 1; at least the observed one. An older one is being replaced."""
    known: RankStatus
    """What the stored status says of the rank."""
    next_serial: int = 1
    """The first that was never used for the rank."""
    returned: bool = False
    """The job did not have the rank in the pass before, but earlier, and its last pod is gone."""
    entry: FollowerStatus | None = None
    """What the stored status says of its follower; None: it has none."""
    follower: PodObserved | None = None
    """The follower's pod, when there is one."""

    agent: AgentState | None = field(init=False, repr=False, compare=False)
    """The agent's answer, of a pod that is not on its way out."""
    worker: WorkerState | None = field(init=False, repr=False, compare=False)
    """The worker that must run, when the agent says that it has it; None while an older one is being replaced."""

    def __post_init__(self) -> None:
        # A plan asks for these some two hundred times.
        agent = self.pod.agent if self.pod is not None and self.pod.phase is PodPhase.RUNNING else None
        here = agent is not None and agent.worker.incarnation >= self.incarnation
        object.__setattr__(self, "agent", agent)
        object.__setattr__(self, "worker", agent.worker if agent is not None and here else None)

    @property
    def follower_answers(self) -> bool:
        """Whether the agent of the follower's pod does."""
        return self.follower is not None and self.follower.agent is not None

    def in_follower(self) -> "RankFacts":
        """The rank in its follower's pod, with the worker that followed as its own. Raises ValueError where none answers."""
        if self.entry is None or self.follower is None or self.follower.agent is None:
            raise ValueError(f"rank {self.rank} has no follower that answers")
        return replace(
            self,
            serial=self.entry.serial,
            pod=self.follower,
            seen=True,
            incarnation=self.follower.agent.worker.incarnation,
            next_serial=max(self.next_serial, self.entry.serial + 1),
            entry=None,
            follower=None,
        )

    def in_phase(self, *phases: WorkerPhase) -> bool:
        """Whether the rank's worker is in one of ``phases``."""
        return self.worker is not None and self.worker.phase in phases


def rank_facts(observed: Observed) -> tuple[RankFacts, ...]:
    """The facts of all ranks of the spec, in order."""
    status = observed.status
    known = {r.rank: r for r in status.ranks}
    entries = {f.rank: f for f in status.followers}
    names = Names(observed.name, status.promotions)
    pods: dict[int, dict[int, PodObserved]] = {}
    for pod in observed.pods:
        if pod.rank is not None:
            pods.setdefault(pod.rank, {})[pod.serial] = pod
    return tuple(
        _facts(status, rank, known.get(rank), pods.get(rank, {}), entries.get(rank), names)
        for rank in range(observed.spec.world_size)
    )


def _facts(
    status: JobStatus,
    rank: int,
    listed: RankStatus | None,
    pods: dict[int, PodObserved],
    entry: FollowerStatus | None,
    names: Names,
) -> RankFacts:
    """``listed``: its entry in the status; None: the job did not have it in the pass before. ``pods``: the rank's, by serial."""
    known = listed or RankStatus(rank=rank, state="NoPod")
    # Serials above the rank's own, up to this, are those of followers.
    made = status.made.get(str(rank), 0)
    serial = max([status.serials.get(str(rank), 0), *(s for s in pods if s > made)])
    pod = pods.get(serial)
    same = serial > 0 and known.pod == names.of(rank, serial)
    there = pod.agent.worker.incarnation if pod is not None and pod.agent is not None else 0
    return RankFacts(
        rank=rank,
        serial=serial,
        pod=pod,
        seen=same or pod is not None,
        incarnation=max(there, known.incarnation if same else 0, 1),
        known=known,
        next_serial=max(serial, made) + 1,
        returned=listed is None and serial > 0 and pod is None,
        entry=entry,
        follower=pods.get(entry.serial) if entry is not None else None,
    )


def in_sync(pod: PodObserved, *, stateless: bool = False) -> bool:
    """Whether the worker of ``pod`` has what the rank that it followed had. ``stateless``: there is nothing to have."""
    if pod.phase is not PodPhase.RUNNING or pod.agent is None:
        return False
    worker = pod.agent.worker
    if stateless:
        return worker.phase is WorkerPhase.READY
    return worker.phase in (WorkerPhase.FOLLOWING, WorkerPhase.READY) and worker.holding is not None
