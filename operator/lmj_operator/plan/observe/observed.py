"""What a backend saw of a job: everything that the plan may look at."""

from dataclasses import dataclass, field
from enum import StrEnum

from lmj_api.cut import Cut
from lmj_api.protocol import AgentState
from lmj_api.run import Run
from lmj_api.spec.job import JobSpec
from lmj_api.status import JobStatus
from lmj_api.topology import Topology


class PodPhase(StrEnum):
    """Where a pod is in its life."""

    PENDING = "Pending"
    """Made, but nothing runs in it yet."""
    RUNNING = "Running"
    """Its agent's process runs; whether it answers is another matter."""
    TERMINATING = "Terminating"
    """It was told to go and is not gone yet."""
    GONE = "Gone"
    """Its agent's process ended."""


@dataclass(frozen=True, slots=True)
class PodWait:
    """Why a pod that was made does not start, and it is not its own fault: no node has room, an image is not there."""

    reason: str
    """One CamelCase word: ``Unschedulable``, ``ImagePullBackOff``."""
    message: str
    """One line, as the place says it."""
    since: float
    """Since when, seconds since the epoch."""
    elsewhere: bool = False
    """Another pod, on another node, may start: it is waited for no longer than for any other that starts."""


@dataclass(frozen=True, slots=True)
class PodObserved:
    """One pod. Times are seconds since the epoch."""

    name: str
    rank: int | None
    """None: a standby."""
    serial: int
    phase: PodPhase
    created: float
    node: str | None = None
    exit_code: int | None = None
    """How the agent's process ended, when the phase is ``Gone``; negative: the signal."""
    exit_message: str | None = None
    """One line on that."""
    agent: AgentState | None = None
    """The agent's answer; None: it did not answer this time."""
    unreachable_since: float | None = None
    """Since when a running agent has not answered."""
    dark: bool = False
    """Its machine takes no connection: it is off, or there is no way to it. One whose agent is slow, or stopped, takes them."""
    vouched: bool = False
    """Somebody nearer than the operator says that it is well: a silent agent may then be the operator's own network's fault."""
    waits: PodWait | None = None
    """What a pending pod waits for, where that is known."""
    node_leaving: str | None = None
    """Why its node is to be left, in one clause: cordoned, or about to be taken away; None: it is not."""
    node_goes_at: float | None = None
    """When the node is taken away; None: nobody says so."""
    disrupted: str | None = None
    """Why the cluster has ended it, or is about to, in one clause: it was evicted or preempted, its node is gone. None: nobody says so."""
    misplaced: str | None = None
    """Why the spec's placement does not allow its node any more, in one clause; None: it does."""
    outdated: bool = False
    """Nothing runs in it yet, and the spec wants another one by now: that may not have to wait. Or its worker left, as it was to."""
    unlisted: bool = False
    """Its labels call it a standby."""
    cut: Cut | None = None
    """How the layers are cut for it; None: as in the pods that train."""
    leaves: bool = False
    """It was told to end while its worker ran, and has the whole of its grace period for that: it can stay for another to take its place."""
    keyless: bool = False
    """It obeys none of the operator's keys, so nobody can ask it what it does. It is ended, and may save until it is gone."""
    enforced: bool | None = None
    """Whether the network keeps the operator from its canary, as the job's NetworkPolicy wants it. None: that is not known."""

    @property
    def waits_anywhere(self) -> bool:
        """Whether it waits for something that another pod would wait for too."""
        return self.waits is not None and not self.waits.elsewhere


@dataclass(frozen=True, slots=True)
class Observed:
    """One job with its pods and the status that was stored last."""

    name: str
    spec: JobSpec
    status: JobStatus
    pods: tuple[PodObserved, ...] = ()
    run: Run = field(default_factory=Run)
    """Which run of the job of this name it is."""
    generation: int | None = None
    deleted: bool = False
    """The job is being deleted: its pods must go."""
    interrupted: bool = False
    """The person at the terminal asked to leave (Ctrl-C): as ``suspend``, until the next run."""
    one_node: bool = False
    """There is one node, so none can be avoided."""
    networked: bool = False
    """Pods are on a network, of which it is found out whether it enforces the job's NetworkPolicy."""
    problem: str | None = None
    """What is wrong with a change of the spec that is not followed; ``spec`` is the one before it."""

    move_request: str | None = None
    """Which ranks a person asked to move: see :data:`lmj_api.names.MIGRATE`."""
    nodes: frozenset[str] = frozenset()
    """Names of all nodes, while ``move_request`` is one that was not taken up yet; empty: they are not known, or nobody asks."""
    wanted_cut: Cut | None = None
    """How the layers are to be cut, where that is another way than the pods that train have, which ``spec`` has; None: that way."""
    asked_replicas: int | None = None
    """How many replicas were asked for, where ``spec`` has more for as long as one of those alone has the state; None: as many as that has."""
    apart: tuple[PodObserved, ...] = ()
    """Pods of ranks in other cuts than those that train, which ``pods`` has."""

    @property
    def every_pod(self) -> tuple[PodObserved, ...]:
        """All pods, of whatever cut."""
        return self.pods + self.apart

    @property
    def asked(self) -> Topology:
        """The replicas and stages that were asked for."""
        topology = self.spec.topology
        return topology if self.asked_replicas is None else Topology(topology.stages, self.asked_replicas)

    @property
    def stop_wanted(self) -> bool:
        """Whether the job must take a checkpoint and leave."""
        return self.spec.suspend or self.interrupted
