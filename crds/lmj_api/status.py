"""What a job's status says."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from lmj_api.base import Message
from lmj_api.bounds import Line, Stamp, Text
from lmj_api.cut import MOST_STAGES, Cut
from lmj_api.protocol import CheckpointInfo, Copied, Evaluation, Progress
from lmj_api.view import RankCount, RankNumber, View


class Phase(StrEnum):
    """The one-word summary."""

    PENDING = "Pending"
    """Pods are being made and workers start."""
    RUNNING = "Running"
    """A view trains."""
    RECOVERING = "Recovering"
    """A rank failed; the next view is being formed."""
    SUSPENDING = "Suspending"
    """A last checkpoint is being taken."""
    SUSPENDED = "Suspended"
    """Stopped at a checkpoint, without pods."""
    SUCCEEDED = "Succeeded"
    """Trained to the end; the model is saved."""
    FAILED = "Failed"
    """Given up: the message says why."""


class Condition(Message):
    """As ``metav1.Condition``."""

    type: str
    """Name of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one CamelCase word."""
    message: Text
    """Why, in one sentence."""
    last_transition_time: Stamp
    """When ``status`` last changed, RFC 3339."""
    observed_generation: int | None = None
    """Generation of the spec that this speaks of."""


class RankStatus(Message):
    """One rank."""

    rank: RankNumber
    """The rank."""
    replica: RankNumber | None = None
    """The replica that it belongs to, from 0; None: a status of an earlier version, which knew one."""
    stage: Annotated[int, Field(ge=0, lt=MOST_STAGES)] | None = None
    """The stage that it computes, from 0."""
    pod: str | None = None
    """Its pod."""
    node: str | None = None
    """Node of the pod."""
    state: Text
    """Where its worker is in its life; ``NoPod`` or ``Unreachable`` when there is none to ask."""
    incarnation: int = 0
    """Which worker process of the pod."""
    step: int = 0
    """Newest step that it reported."""
    heartbeat_seconds: float | None = None
    """Age of its newest sign of progress when the status was written."""
    compute_seconds: float | None = None
    """What a step takes it, without waiting for others: the median of its newest steps in the view, three digits. None: not known."""
    restarts: int = 0
    """Times that its worker or pod was replaced."""
    worker_restarts: int = 0
    """Restarts of its worker in this pod, in a row without a new step."""
    exit_code: int | None = None
    """Exit code of its last failure."""
    exit_message: Text | None = None
    """One line on its last failure."""


class FollowerStatus(Message):
    """A second pod of a rank, whose worker keeps the state of the first as it is."""

    rank: RankNumber
    """The rank."""
    serial: int
    """Serial of the pod, higher than that of the rank's own."""
    pod: str
    """The pod."""
    node: str | None = None
    """Node of the pod."""
    to: str | None = None
    """The node that it has to be on; None: any."""
    state: Literal["Pending", "Starting", "Copying", "InSync"] = "Pending"
    """``Pending``: there is no pod yet. ``InSync``: it has all steps, and takes the rank's place when that is lost."""
    incarnation: int = 1
    """Which worker process of the pod."""
    since: float = 0.0
    """When it came to that, seconds since the epoch."""
    copied: Copied | None = None
    """``Copying``, ``InSync``: what its worker has taken, as it last told."""
    failures: int = 0
    """Times in a row that it, or one before it, was lost before it was in sync."""
    not_before: float = 0.0
    """Nothing is started for it before this time, seconds since the epoch."""


class JoinStatus(Message):
    """A replica that is not in the view and is to join it. Its ranks follow those of another meanwhile."""

    replica: RankNumber
    """The replica, from 0."""
    source: RankNumber | None = None
    """The replica that it follows; None: none yet."""
    state: Literal["Waiting", "Starting", "Copying", "InSync"] = "Waiting"
    """``Waiting``: it follows nobody. ``InSync``: it has all steps, and joins at the next step boundary."""
    since: float = 0.0
    """When it came to that, seconds since the epoch."""
    failures: int = 0
    """Times in a row that it was lost before it had joined."""
    not_before: float = 0.0
    """It follows nobody before this time, seconds since the epoch."""


class RecutFollower(FollowerStatus):
    """A pod of another cut, whose worker keeps what its stage has of the state."""

    source: RankNumber | None = None
    """The replica whose ranks it follows; None: none yet."""
    message: Text | None = None
    """Why it does not start; None: nothing is wrong."""


class RecutStatus(Message):
    """Pods of another cut of the layers, which are to take the place of those that train."""

    cut: Cut
    """Theirs."""
    since: float = 0.0
    """When it was asked for, seconds since the epoch."""
    state: Literal["Pending", "Starting", "Copying", "InSync"] = "Pending"
    """That of the pod that is least so. ``InSync``: they take over at the next step boundary."""
    followers: list[RecutFollower] = []
    """The pods, in order of their ranks in that cut."""
    given_up: Text | None = None
    """Why the job trains on as it is cut now, until something else is asked for; None: it is under way."""


class MoveCause(StrEnum):
    """Why a rank is to run in another pod."""

    REQUESTED = "Requested"
    """Somebody asked for it."""
    POD_DELETED = "PodDeleted"
    """Its pod was told to end, and has a part of its grace period to go."""
    NODE = "Node"
    """Its node is cordoned, drained or tainted."""
    PLACEMENT = "Placement"
    """Its node is not where the spec wants it."""
    STRAGGLER = "Straggler"
    """It computes slower than its peers."""


class MoveStatus(Message):
    """A rank that is to run in another pod, while training goes on."""

    rank: RankNumber
    """The rank."""
    serial: int
    """Serial of the pod that it leaves."""
    node: str | None = None
    """Node that it leaves."""
    to: str | None = None
    """Node that it is to run on; None: any other."""
    strategy: Literal["Live", "Checkpoint"] = "Live"
    """How: while training goes on, or through a checkpoint."""
    cause: MoveCause = MoveCause.NODE
    """Why."""
    reason: Text
    """Why, in one clause."""
    since: float
    """When it was asked for, seconds since the epoch."""
    given_up: Text | None = None
    """Why it did not come to a live move, and what follows. None: it is under way."""


class StragglerStatus(Message):
    """A rank that computes slower than its peers, or was moved for that lately."""

    rank: RankNumber
    """The rank."""
    pod: str
    """Its pod: another one is judged anew."""
    node: str | None = None
    """Node of the pod."""
    since: float | None = None
    """Since when it does, without a break, seconds since the epoch; None: it does not."""
    slow: bool = False
    """It has for ``recovery.straggler.seconds``, and still does."""
    ratio: float = 1.0
    """How many times as long as its peers it computed when that was last known."""
    moves: int = 0
    """Moves that were begun for it: each that did not help, or was given up, makes the next one later."""
    not_before: float = 0.0
    """No other move is begun for it before this time, seconds since the epoch."""
    stays: Text | None = None
    """Why it is not moved, in one clause; None: it is, or nobody asked for that."""


class NodeFailures(Message):
    """Recent failures of the job's workers and pods on one node."""

    node: str
    """The node."""
    rank: RankNumber | None = None
    """The rank whose pods alone avoid it, because its link from there to another rank's node broke again and again; None: all pods do."""
    times: list[float] = []
    """When, seconds since the epoch, oldest first; those in a row without a new step in between."""
    step: int = 0
    """Committed steps at the newest."""
    avoided_since: float | None = None
    """Since when new pods avoid the node, seconds since the epoch; None: they do not."""
    reason: Text | None = None
    """Why they do, in one clause."""


class StandbyState(StrEnum):
    """Where a standby pod is in its life."""

    WANTED = "Wanted"
    """It is to be made."""
    PENDING = "Pending"
    """Made, but nothing runs in it yet."""
    WARMING = "Warming"
    """It imports and prepares."""
    WARM = "Warm"
    """It can become any rank at once."""
    UNREACHABLE = "Unreachable"
    """Its agent does not answer."""


class StandbyStatus(Message):
    """A pod without a rank, kept for the next one that is lost."""

    pod: str
    """The pod."""
    node: str | None = None
    """Its node."""
    state: StandbyState = StandbyState.WANTED
    """Where it is in its life."""
    message: Text | None = None
    """Why it does not start, or what happened to the one before it; None: nothing is wrong."""
    failures: int = 0
    """Standbys before it that did not become or stay warm, in a row: the exponent of the back-off."""
    not_before: float | None = None
    """It is not made before this time (back-off), seconds since the epoch."""


class Promotion(Message):
    """A standby that became a rank's pod. Stored before it is told, so that nobody can give it another."""

    pod: str
    """The pod, which keeps its name."""
    rank: RankNumber
    """Its rank."""
    serial: int
    """Which pod of the rank it is."""


class IncidentKind(StrEnum):
    """What interrupted training."""

    WORKER_EXITED = "WorkerExited"
    """A rank's process ended."""
    POD_GONE = "PodGone"
    """A rank's pod is gone, is going, or does not answer."""
    HANG = "Hang"
    """No rank made a step for too long."""
    START_TIMEOUT = "StartTimeout"
    """A pod or a worker was not ready in time."""
    VIEW_DROPPED = "ViewDropped"
    """A link broke, all members live."""
    MOVED = "Moved"
    """Nothing failed: a rank moved."""
    RECUT = "Recut"
    """Nothing failed: the layers were cut anew."""
    REPLICA_LOST = "ReplicaLost"
    """Replicas are out of the view, and the others train on. What befell their ranks has incidents of its own."""
    SCALED = "Scaled"
    """Nothing failed: another number of replicas was asked for."""


class Incident(Message):
    """Something that interrupted training, and what it cost."""

    time: Stamp
    """When it was noticed, RFC 3339."""
    kind: IncidentKind
    """What it was."""
    rank: int
    """The rank that failed. ``ReplicaLost``: the first of those. ``Scaled``: the first that comes or goes."""
    pod: str
    """Its pod; empty for ``Scaled``."""
    peer: str | None = None
    """``ViewDropped``: the pod to which its link broke, where that is known."""
    node: str | None = None
    """Where that was."""
    noticed_by: Text = "the operator"
    """Who noticed first: ``its agent``, ``its peers``, ``the operator``."""
    message: Text
    """What happened, in one sentence."""
    view: int
    """Number of the view that it broke; 0: before the first."""
    step: int
    """Committed steps when it was noticed."""
    steps_lost: int | None = None
    """Steps that are done again; None until the next view runs."""
    seconds: float | None = None
    """From notice to the next new step; None until then."""
    step_seconds: float | None = None
    """``Moved``, ``Recut``: what a step took before, where that is known."""
    pause_seconds: float | None = None
    """``Moved``, ``Recut``: from the last update before it to the first batch after it; None until a new step, or where that is not known."""
    pause_by: Literal["workers", "operator"] | None = None
    """Who measured that. ``workers``: one that was there before and after, by its own clock. ``operator``: no worker was, so it is what of
    ``seconds`` is more than a step took, and longer than it was, because the operator looks now and then."""
    copied: Copied | None = None
    """``Moved``, live: what the rank's new worker had taken of the old one when it took its place, and the digest that both had computed."""
    recovery: Text | None = None
    """How training went on, in one sentence; None until the next view runs."""
    replicas: list[int] = []
    """``ReplicaLost``: the replicas that are out of the view. ``Scaled``: those that come or go."""
    replicas_before: int | None = None
    """``ReplicaLost``: how many trained before. ``Scaled``: how many were wanted."""
    replicas_after: int | None = None
    """``ReplicaLost``: how many train on. ``Scaled``: how many are wanted."""
    whole_step: int | None = None
    """``ReplicaLost``: committed steps when all of them were in the view again, or the job had them no more. ``Scaled``: when as many as were
    wanted trained, or another number was asked for. Both: or when training ended. None until then."""
    whole_seconds: float | None = None
    """From notice to all of them being in the view; None until then, and where they never were."""


class StateCopy(Message):
    """A step that training could go on from, and where the states of the ranks are of it."""

    step: int
    """Committed steps."""
    memory: int = 0
    """Ranks whose state is in the memory of their own pod (``recovery.memorySnapshot``)."""
    neighbours: int = 0
    """Ranks whose state is in the memory of the next rank's pod: it is there when their own is lost."""
    writing: bool = False
    """A checkpoint of it is under way: until it is durable it is in the memory of the workers, and lost with any of them."""
    checkpoint: str | None = None
    """Its checkpoint, which is durable in ``checkpointPlace``; None: there is none, or it is not complete."""


class JobStatus(Message):
    """What the operator last saw, and the few facts that cannot be observed again (counters, incidents)."""

    phase: Phase = Phase.PENDING
    """The one-word summary."""
    phase_since: float | None = None
    """When it entered the phase, seconds since the epoch."""
    message: Text = ""
    """Why it is in this phase, in one sentence."""
    observed_generation: int | None = None
    """Generation of the spec that this speaks of."""
    conditions: list[Condition] = []
    """Standing facts, by type."""
    view: View | None = None
    """Newest view; the next has a higher number."""
    left_since: float | None = None
    """When the operator first saw that a member had left ``view``, or was done, seconds since the epoch; None: none has."""
    look_since: float | None = None
    """Since when the next view waits for a look through the checkpoints, seconds since the epoch; None: it does not."""
    serials: dict[str, int] = {}
    """Highest pod serial made for each rank (keys are ranks; ``s``: standbys): a serial is never used twice."""
    cut: Cut | None = None
    """How the layers are cut in the pods of all ranks; None: it was not stored yet."""
    replicas: RankCount = 0
    """Replicas in the newest view, those that train; 0 while the job is at rest."""
    wanted_replicas: RankCount = 0
    """Replicas that the spec wants; 0: no pass has looked yet."""
    replica_summary: Text = ""
    """``2/4``: how many train, of how many that are wanted. Empty while the job is at rest, and where it has one shard."""
    stages: RankCount = 0
    """Stages of each of them; 0 while the job is at rest."""
    selector: str = ""
    """Labels of the job's pods, as autoscalers ask for them."""
    followers: list[FollowerStatus] = []
    """Pods that keep a rank's state beside it, in order of rank."""
    joins: list[JoinStatus] = []
    """Replicas that are on their way into the view, in order."""
    recut: RecutStatus | None = None
    """Pods of another cut that are to take over; None: the layers are cut as is wanted."""
    moves: list[MoveStatus] = []
    """Ranks that are being moved, or could not be."""
    stragglers: list[StragglerStatus] = []
    """Ranks that compute slower than their peers, in order; at most as many as there are ranks."""
    move_request: str | None = None
    """The last request to move ranks that was taken up, as it was written."""
    move_refused: Text | None = None
    """Why that request is not followed; None: it is, or was."""
    made: dict[str, int] = {}
    """Highest serial of each rank that was given to a follower."""
    standbys: list[StandbyStatus] = []
    """Pods without a rank that are wanted, oldest first."""
    warm_standbys: int = 0
    """How many of them are warm."""
    promotions: list[Promotion] = []
    """Standbys that became a rank's pod, as long as they are."""
    progress: Progress | None = None
    """Newest committed step."""
    evaluations: list[Evaluation] = []
    """Newest evaluation of each split."""
    ranks: list[RankStatus] = []
    """All ranks, in order."""
    checkpoint: CheckpointInfo | None = None
    """Newest durable checkpoint."""
    checkpoint_place: Line = ""
    """Where checkpoints are durable: a folder of a volume, or a place in object storage. Empty: a script saves its own."""
    copies: list[StateCopy] = []
    """Where the newest states are, newest step first, at most 8: in memory, being written, durable. None of a script's."""
    restarts: int = 0
    """Workers and pods replaced, over all starts of the job."""
    restarts_before: int = 0
    """How many of them the budget does not count: those before the newest ``lmj run``, which has a budget of its own (a run that was killed is one
    of them), and ``disruptions``."""
    disruptions: int = 0
    """How many of them were of pods that the cluster took away: evicted or preempted, or their node was drained or is gone."""
    disruptions_without_progress: int = 0
    """Times since the last new step that it took pods away: the exponent of the back-off of those."""
    restarts_without_progress: int = 0
    """Restarts since the last new step: the exponent of the back-off."""
    restart_step: int = 0
    """Highest step when the last restart was decided."""
    not_before: float | None = None
    """No restart before this time (back-off), seconds since the epoch."""
    migrations: int = 0
    """Ranks moved."""
    steps_lost: int = 0
    """Steps done again, over all incidents."""
    nodes: list[NodeFailures] = []
    """Nodes on which the job's workers or pods failed lately, and which of them new pods avoid; at most 32."""
    incidents: list[Incident] = []
    """The last 10, oldest first; up to 50 while training has not recovered from them."""
    started: float | None = None
    """When the first pod was made, seconds since the epoch."""
    finished: float | None = None
    """When it succeeded or failed, seconds since the epoch."""
    cleaned: bool = False
    """The finished job's Service and policies were removed (on a cluster)."""
