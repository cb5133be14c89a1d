"""What the operator and the agents say to each other (HTTP, JSON), and the agent and its worker (a socket, JSON lines)."""

import math
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from lmj_api.base import Message
from lmj_api.bounds import FIRST, LARGEST, Count, Line, Name, Time, printable
from lmj_api.cut import Cut
from lmj_api.spec.metric import Metric
from lmj_api.view import MOST_RANKS, Member, View

USER_ERROR = 2
"""Exit code of a worker (and of every command) for a mistake that a restart cannot fix: bad spec, bad data, wrong model."""
CUT_OFF = 3
"""Exit code of a worker to which nobody can connect any more, because a connection to it ended too early: that of a peer which died just then."""

STARTING_SCRIPT = "start the script"
"""Activity of a worker whose script has reported nothing yet in its view."""

MOST_LINES = 200
"""Of stderr."""
MOST_EVALUATIONS = 8
MOST_CELLS = 64 * 64
"""Of a confusion matrix that is told: one of more labels is in the results' file, and no object of a cluster has room for it."""
MOST_LABEL_CHARACTERS = 16_384
MOST_CHECKPOINTS = 1000
"""That an agent reports; the newest."""
MOST_SNAPSHOTS = 1000
MOST_NAMES = 8
"""Of checkpoints that an agent is told to look for."""

DELIVERY_SECONDS = 90.0
"""The agent of rank 0 has told a run's trackers the rest within so long after its worker completed: nobody waits for longer."""
PUSH_SECONDS = 1800.0
"""A model that is not on the hub within so long after its worker completed is not pushed."""

Seconds = Annotated[float, Field(ge=0, le=LARGEST)]


class WorkerPhase(StrEnum):
    """Where a worker is in its life."""

    STARTING = "Starting"
    """It is being started, or prepares: imports, data, model. It has no address yet."""
    READY = "Ready"
    """It has an address and waits for a view (a first one, or the next after a broken one)."""
    FOLLOWING = "Following"
    """It is no member of a view: it keeps the state of its rank as the member has it. ``holding`` says how far it is, once it is in sync."""
    RUNNING = "Running"
    """It is a member of ``view`` and trains or evaluates."""
    COMPLETED = "Completed"
    """The job's last step is committed and all of its outputs are on disk."""
    DRAINED = "Drained"
    """It was asked to leave, took a checkpoint and left."""
    EXITED = "Exited"
    """The process is gone without having completed or drained: see ``exit``."""


class Exit(Message):
    """How a worker process ended."""

    code: Annotated[int, Field(ge=-(2**31), lt=2**31)]
    """Exit code; negative: the signal that ended it. ``2`` is a user's error."""
    message: Line
    """One line that says why: the error for the user, or the last line of stderr."""
    stderr: Annotated[list[Line], FIRST, AfterValidator(lambda lines: lines[-MOST_LINES:])] = []
    """Last lines of stderr."""


class Progress(Message):
    """The newest committed step."""

    step: Count
    """Committed steps."""
    steps: Annotated[int, Field(ge=1, le=LARGEST)]
    """Steps of the whole job."""
    epoch: float
    """Epochs done, with the fraction."""
    loss: float | None = None
    """Mean loss of the step's global batch."""
    learning_rate: float | None = None
    """Learning rate of the step."""
    grad_norm: float | None = None
    """Norm of the step's gradient over all stages, before clipping."""
    samples_per_second: float | None = None
    """Throughput over the last seconds."""
    eta_seconds: float | None = None
    """Estimated time to the last step."""
    replicas: Count | None = None
    """Replicas that took the step; None: the job has one shard."""
    stopped: Line | None = None
    """Why training ended at this step, before its last one; None: it did not."""
    activity: Line = "train"
    """What it does now: ``train``, ``evaluate``, ``checkpoint``, ``export`` or ``prepare``, with details after it."""


MOST_METRICS = 16
"""Of an evaluation."""


def _metrics(value: object) -> object:
    """Those of ``value`` that are numbers, at most so many, by names of at most 64 characters."""
    if not isinstance(value, dict):
        return value
    told = {printable(str(name)[:64]): number for name, number in value.items() if _number(number) is not None}
    return dict(list(told.items())[:MOST_METRICS])


def _number(value: object) -> object:
    """``value``, or None in place of what is no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Evaluation(Message):
    """A pass over a split without training."""

    split: Line
    """``validation`` or ``test``."""
    step: Count
    """Committed steps of the weights."""
    samples: Annotated[int, Field(ge=1, le=LARGEST)]
    """Rows of the split; its labelled words, of a task that labels words."""
    loss: Annotated[float | None, BeforeValidator(_number)] = None
    """Mean of the task's loss, the cross entropy as a rule; None: it is not a finite number, so the weights are of no use."""
    accuracy: float | None = None
    """Part of the samples with the right label (all labels, where there may be several), 0 to 1. None: of a task without labels."""
    f1: float | None = None
    """F1 of the second label when there are two, else the mean F1 of all; or as the task has it. None: it has none."""
    perplexity: Annotated[float | None, BeforeValidator(_number)] = None
    """Of a language model: e to the power of the loss. None: it is none, or that is too large for a number."""
    mean_absolute_error: Annotated[float | None, BeforeValidator(_number)] = None
    """Of a task whose labels are numbers; None: of others."""
    correlation: Annotated[float | None, BeforeValidator(_number)] = None
    """Pearson's, of such a task; None: of others, and where all numbers are the same."""
    metrics: Annotated[dict[str, float], BeforeValidator(_metrics)] = {}
    """Of a job's own class (``model.python``), by its names."""
    own_score: Annotated[float | None, BeforeValidator(_number)] = None
    """Of a job's own class that says what the best weights are chosen by: that number; larger is better. None: of others."""
    metric: Metric | None = None
    """What the best weights are chosen by; None: what they are in this task where nothing is said."""
    labels: Annotated[list[str], FIRST] = []
    """Names of the labels, the order of ``confusion``; none where the task has none."""
    confusion: Annotated[list[Annotated[list[Count], FIRST]], FIRST] = []
    """Rows: true label; columns: predicted label; counts."""

    @property
    def score(self) -> float:
        """What the best weights are chosen by; larger is better. ``own_score``; ``metric``; or the accuracy; of language models and numbers the loss, as a
        negative number.
        """
        if self.own_score is not None:
            return self.own_score
        if self.metric is not None:
            value: float | None = getattr(self, _FIELDS[self.metric])
            return -math.inf if value is None else value if self.metric.larger_is_better else -value
        if self.f1 is not None and self.accuracy is not None:
            return self.accuracy
        return -math.inf if self.loss is None else -self.loss

    @property
    def loss_text(self) -> str:
        """The loss for people."""
        return "not a number" if self.loss is None else f"{self.loss:.4f}"

    @property
    def scores(self) -> dict[str, float]:
        """What the task has of them, by their names for people."""
        named = {
            "accuracy": self.accuracy,
            "F1": self.f1,
            "perplexity": self.perplexity,
            "mean absolute error": self.mean_absolute_error,
            "correlation": self.correlation,
            **self.metrics,
        }
        return {name: value for name, value in named.items() if value is not None}

    @property
    def scores_text(self) -> str:
        """The scores and the loss for people."""
        return ", ".join([*(f"{name} {value:.4f}" for name, value in self.scores.items()), f"loss {self.loss_text}"])


_FIELDS = {
    Metric.LOSS: "loss",
    Metric.ACCURACY: "accuracy",
    Metric.F1: "f1",
    Metric.PERPLEXITY: "perplexity",
    Metric.MEAN_ABSOLUTE_ERROR: "mean_absolute_error",
    Metric.CORRELATION: "correlation",
}
"""Of an evaluation."""


def _told(whole: Evaluation) -> Evaluation:
    """``whole`` without labels and matrix, when there are too many of them to be told."""
    if sum(map(len, whole.confusion)) <= MOST_CELLS and sum(map(len, whole.labels)) <= MOST_LABEL_CHARACTERS:
        return whole
    return whole.model_copy(update={"labels": [], "confusion": []})


Told = Annotated[Evaluation, AfterValidator(_told)]
"""An evaluation that is told: of many labels, without the matrix."""


class CheckpointInfo(Message):
    """A checkpoint in the job's checkpoint folder."""

    name: Name
    """Its folder, relative to the checkpoint folder."""
    step: Count
    """Committed steps that it holds."""
    size: Count = 0
    """Bytes of all its files."""
    best: bool = False
    """The best validation accuracy so far was reached here."""
    time: Time = 0.0
    """When its manifest was written, seconds since the epoch."""
    problem: Line | None = None
    """Why it cannot be used: the file and the digest. None: it was verified, or written by this job's running workers."""


class CheckpointTrouble(Message):
    """Checkpoints that could not be written, and none could since."""

    step: Count
    """Committed steps of the newest that failed."""
    since: Time
    """When the first of them failed, seconds since the epoch."""
    error: Line
    """Why the newest failed."""
    refused: bool = False
    """The store refused the credentials, which have to be renewed where the job has them from; else it is something else."""


class Holding(Message):
    """The state of training that a worker has in its memory."""

    step: Count
    """Committed steps of it."""
    prepared: bool = False
    """All gradients of the next step are there too: if that one was committed, it can still be taken."""


class Snapshots(Message):
    """Snapshots of ranks' states that a pod has in its memory, which outlives its workers: committed steps of each, newest first."""

    own: Annotated[list[Count], FIRST, Field(max_length=MOST_SNAPSHOTS)] = []
    """Of its own rank."""
    kept: Annotated[list[Count], FIRST, Field(max_length=MOST_SNAPSHOTS)] = []
    """Of the rank before it, cyclically: kept for the case that that one's pod is lost."""


class Copied(Message):
    """What a follower has taken of its source."""

    done: Count = 0
    """Bytes of weights and moments."""
    size: Count
    """Bytes of all weights and moments."""
    gradients: Count = 0
    """Bytes of gradients, which came for what was there already."""
    step: Count | None = None
    """The newest step of its source that it knows to be committed."""
    eta_seconds: Annotated[float, Field(ge=0)] | None = None
    """When the copy is complete at the speed that it had so far; None: it is complete, or has not begun."""
    in_sync_step: Count | None = None
    """The step at which it had all."""
    digest: Line | None = None
    """XXH3-128 of weights and moments at that step, hex: source and follower have computed the same."""


class Recut(Message):
    """Workers of another cut that follow a worker, each what its own stage has of that one's."""

    cut: Cut
    """Theirs."""
    followers: Annotated[list[Member], FIRST, Field(max_length=MOST_RANKS)]
    """Who, with their ranks in that cut."""


class WorkerState(Message):
    """All that an agent knows of its worker."""

    incarnation: Count = 0
    """Which worker process of this pod, from 1; 0: none was started yet."""
    phase: WorkerPhase = WorkerPhase.STARTING
    """Where it is in its life."""
    since: Time = 0.0
    """When it entered the phase, seconds since the epoch."""
    pid: int | None = None
    """Process id, in the pod; None: it is not started yet, or it is gone."""
    address: Name | None = None
    """Where it listens for RPC; set from ``Ready`` on."""
    view: Count = 0
    """Number of the newest view that it joined (``Running``) or was in (``Ready``: it dropped it)."""
    progress: Progress | None = None
    """Its newest committed step."""
    heartbeat: Time = 0.0
    """When the worker last made progress (a commit, an evaluated batch, a prepared part), seconds since the epoch."""
    holding: Holding | None = None
    """``Ready``, ``Following``: what is in its memory, be it from before or from the worker before it; None: nothing."""
    copied: Copied | None = None
    """``Following``, and ``Ready`` after it: how far its copy is, or was."""
    paused_seconds: Seconds | None = None
    """Before ``view`` trained: from this process's last update to the view's first batch; None: no step was taken yet, or none before it."""
    compute_seconds: Seconds | None = None
    """What a step's micro-batches take it, without waiting for others: the median of its newest steps in ``view``; None: too few."""
    waiting_seconds: Seconds | None = None
    """For how long of a step it waits for others: the same median."""
    snapshots: Snapshots | None = None
    """``Ready``: snapshots in its pod's memory; None: none are taken."""
    memory: Snapshots | None = None
    """The same in all phases, as it last told; None: none are taken, or it has not told. For people: a view is planned by ``snapshots``."""
    saving: Count | None = None
    """``Running``: the step of the checkpoint that is under way; None: none is."""
    lost_rank: int | None = None
    """The peer that it lost, when it dropped its last view for one."""
    lost: Line | None = None
    """Why it dropped its last view, when it did: the peer and the error."""
    exit: Exit | None = None
    """How it ended; set when ``Exited``."""


class Publication(Message):
    """What came of pushing a model to the hub."""

    url: Annotated[str, Field(max_length=2048)] | None = None
    """Where it is; None: it was not pushed."""
    commit: Name | None = None
    """Its commit there."""
    problem: Line | None = None
    """Why it was not pushed."""


class MachineNotice(Message):
    """The cloud is about to take a pod's machine away."""

    reason: Line
    """A clause on the machine, ``it``: what is done to it, and when."""
    at: Time | None = None
    """When, seconds since the epoch; None: that is not known."""


class AgentState(Message):
    """Answer of ``GET /v1/state``."""

    pod: Name
    """Name of the pod."""
    rank: Count | None = None
    """Rank that the pod is for; None: a standby, until the first worker that it is told to start gives it one."""
    warm: bool = False
    """A standby has done all that can be done before its rank is known."""
    started: Time
    """When the agent started, seconds since the epoch."""
    canary: bool = False
    """It listens where the NetworkPolicy of its job does not let the operator in: see :mod:`lmj_api.canary`."""
    clock: Time | None = None
    """What the agent's clock said when it answered this: its other times are by the same. None: an agent of an earlier version."""
    view: View | None = None
    """Newest view that the agent accepted. None: none, or the one that whoever asked has told that it knows."""
    known_view: Count = 0
    """Number of the newest view that the agent accepted, where it is left out because who asked knows it; 0: it is not left out."""
    worker: WorkerState = WorkerState()
    """Its worker."""
    follower: Member | None = None
    """Who is to follow its worker; None: nobody, or it was lost."""
    recut: Recut | None = None
    """Workers of another cut that are to follow its worker, but for those that were lost; None: nobody is."""
    handover: Count = 0
    """Number of the view that its worker is to leave at the next step boundary, so that its followers can take over; 0: none."""
    pause: Count = 0
    """Number of the view that all are to leave at the next step boundary, so that the next one can have fewer members; 0: none."""
    checkpoints: Annotated[list[CheckpointInfo], FIRST, Field(max_length=MOST_CHECKPOINTS)] = []
    """Checkpoints that the pod sees, newest first; those with a problem too."""
    scanned: bool = False
    """``checkpoints`` is complete: the scan of the checkpoint folder, which begins with the agent, is done."""
    looked: Count | None = None
    """The newest view that was over when the newest complete scan began; 0: the first scan, which knows of none. None: an agent of
    before, which scans once."""
    checkpoint_trouble: CheckpointTrouble | None = None
    """Why there is no newer checkpoint, when it should be there; only on the rank that writes manifests (0)."""
    evaluations: Annotated[list[Told], FIRST, Field(max_length=MOST_EVALUATIONS)] = []
    """The newest evaluation of each split, and the best validation; only on the rank that reports (0)."""
    leaving: bool = False
    """It was told to end (SIGTERM) while its worker ran, and drains by itself unless it may stay for a while."""
    staying: bool = False
    """``POST /v1/stay`` was received: it has its worker go on for a part of its grace period, for another pod to take its place."""
    delivered: bool = False
    """Its worker completed, and what was to be done with the results (``output.trackers``, ``output.hub``) is done, or given up."""
    publication: Publication | None = None
    """What came of pushing the model (``output.hub``); None: nothing yet."""
    notice: MachineNotice | None = None
    """The cloud is about to take the pod's machine away (``migration.spotNotices``); None: nothing is known of that."""
    draining: bool = False
    """``POST /v1/drain`` was received, or its time to leave has come."""

    @property
    def newest_view(self) -> int:
        """Number of the newest view that the agent accepted; 0: none."""
        return self.view.number if self.view is not None else self.known_view

    @property
    def good_checkpoints(self) -> list[CheckpointInfo]:
        """Those of ``checkpoints`` that can be loaded, newest first."""
        return [checkpoint for checkpoint in self.checkpoints if checkpoint.problem is None]

    def for_one_who_knows(self, number: int) -> "AgentState":
        """Without the view ``number``, which lists all members: all agents of a job are asked, and each would say the same."""
        if self.view is None or self.view.number != number:
            return self
        return self.model_copy(update={"view": None, "known_view": number})


class EventKind(StrEnum):
    """Kinds of events."""

    WORKER_STARTED = "workerStarted"
    PREPARING = "preparing"
    READY = "ready"
    JOINED = "joined"
    COMMITTED = "committed"
    EVALUATED = "evaluated"
    CHECKPOINTED = "checkpointed"
    LOST_PEER = "lostPeer"
    FOLLOWING = "following"
    FOLLOWER_LOST = "followerLost"
    WARNING = "warning"
    DRAINED = "drained"
    COMPLETED = "completed"
    WORKER_EXITED = "workerExited"
    WARM = "warm"
    LEAVING = "leaving"
    LOOKED = "looked"
    NOTICED = "noticed"


class Event(Message):
    """One line of ``GET /v1/events?after=SEQ``, and of the worker's socket (with ``seq`` 0). State tells what is; events tell what happened."""

    seq: Count = 0
    """Number of the event, from 1, in this agent's life."""
    time: Time
    """When, seconds since the epoch."""
    kind: EventKind
    """What happened."""
    message: Line = ""
    """One line for people."""
    incarnation: Count | None = None
    """``workerStarted``, ``workerExited``: which worker process."""
    address: Name | None = None
    """``ready``: the worker's RPC address. ``followerLost``: that of who followed."""
    view: Count | None = None
    """``joined``, ``lostPeer``: number of the view."""
    holding: Holding | None = None
    """``ready``, ``lostPeer``, ``following``: what is in the worker's memory."""
    copied: Copied | None = None
    """``following``, ``lostPeer`` after it: how far the copy is."""
    snapshots: Snapshots | None = None
    """``ready``, ``lostPeer``: the snapshots in the memory of the worker's pod. ``committed``: the same, where they are others than before."""
    saving: Count | None = None
    """``committed``: the step of the checkpoint that is under way; None: none is."""
    peer: int | None = None
    """``lostPeer``: its rank, when one peer is to blame."""
    progress: Progress | None = None
    """``committed``, ``joined``, ``preparing``: where it stands."""
    paused_seconds: Seconds | None = None
    """``committed``, the first of a view: from this process's last update before it, as a follower too, to the view's first batch."""
    compute_seconds: Seconds | None = None
    """``committed``: what a step's micro-batches take, without waiting: the median of the view's newest steps; None: too few."""
    waiting_seconds: Seconds | None = None
    """``committed``: for how long of a step it waits for others: the same median."""
    evaluation: Told | None = None
    """``evaluated``: the result."""
    best: bool = False
    """``evaluated``: the best validation accuracy so far."""
    checkpoint: CheckpointInfo | None = None
    """``checkpointed``: the checkpoint, now durable."""
    removed: Annotated[list[Name], FIRST] = []
    """``checkpointed``: older checkpoints that were removed for it."""
    trouble: CheckpointTrouble | None = None
    """``warning``: a checkpoint failed, this one alone."""
    exit: Exit | None = None
    """``workerExited``: how."""


class CommandKind(StrEnum):
    """What an agent tells its worker."""

    VIEW = "view"
    LEAVE = "leave"
    FOLLOWER = "follower"
    RECUT = "recut"
    HANDOVER = "handover"
    PAUSE = "pause"
    DRAIN = "drain"


class Command(Message):
    """One line from the agent to its worker."""

    kind: CommandKind
    """``view``: join it. ``leave``: leave a view, or who is followed, and say what is in memory. ``follower``: have it follow.
    ``recut``: have workers of another cut follow. ``handover``: have all leave a view at the next step boundary, with this rank's followers
    in sync. ``pause``: have all leave a view at the next step boundary. ``drain``: take a checkpoint and leave."""
    view: View | None = None
    """``view``: which."""
    number: int | None = None
    """``leave``, ``handover``, ``pause``: number of the view; older ones are left too, newer ones are not."""
    follower: Member | None = None
    """``follower``: who; None: nobody any more."""
    recut: Recut | None = None
    """``recut``: who; None: nobody any more."""


class FollowRequest(Message):
    """Body of ``PUT /v1/follower``: have another pod's worker follow this one's, beside training. Idempotent."""

    follower: Member | None = None
    """Who; None: nobody any more."""


class RecutRequest(Message):
    """Body of ``PUT /v1/recut``: have workers of another cut follow this pod's, beside training. Idempotent."""

    recut: Recut | None = None
    """Who; None: nobody any more."""


class Source(Message):
    """Body of ``POST /v1/source``: let the relay of another pod in, whose worker this one is to follow. Idempotent; those that were told before stay,
    until this pod is in a new view.

    Members of a view let each other in without being told: the view has their addresses.
    """

    address: Name
    """Of the other pod's worker."""


class LookThrough(Message):
    """Body of ``POST /v1/look``: look through the checkpoint folder again. Idempotent; the agent says in ``looked`` when it is done."""

    number: Annotated[int, Field(ge=1, le=LARGEST)]
    """Number of the newest view that is over: nobody saves a checkpoint in it any more."""
    names: Annotated[list[Name], FIRST, Field(max_length=MOST_NAMES)] = []
    """Checkpoints that were heard of: they are looked for where the folder does not list them yet."""


class ViewNumber(Message):
    """Body of ``POST /v1/leave``: have the worker leave this view and all before it. Idempotent; a worker in a newer view stays there.

    And of ``POST /v1/handover``: have all of the view leave it at the next step boundary, this rank's follower with them.
    Of ``POST /v1/pause``: have all of the view leave it at the next step boundary.
    """

    number: Annotated[int, Field(ge=1, le=LARGEST)]
    """Number of the view."""


class StartWorker(Message):
    """Body of ``PUT /v1/worker``: have worker ``incarnation`` running. Idempotent: one that was started already is left alone, an older number is refused."""

    incarnation: Annotated[int, Field(ge=1, le=LARGEST)]
    """Number of the worker process in this pod."""
    rank: Count | None = None
    """The rank that it is to be. A standby becomes it for good; a pod of another rank refuses. None: the pod's own."""
