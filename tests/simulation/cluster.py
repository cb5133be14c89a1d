"""A cluster of a few dataclasses whose agents and workers follow the protocol, with a clock of its own."""

from dataclasses import dataclass, field

from lmj_api.names import checkpoint_name, pod_name, standby_name
from lmj_api.protocol import USER_ERROR, AgentState, CheckpointInfo, Exit, Holding, Progress, Snapshots, WorkerPhase, WorkerState
from lmj_api.spec import JobSpec
from lmj_api.status import JobStatus
from lmj_api.view import Member, Resume, View
from lmj_operator.plan import (
    Action,
    CreatePod,
    DeletePod,
    Drain,
    EnlistPod,
    Follow,
    HandOver,
    LeaveView,
    Observed,
    Plan,
    PodObserved,
    PodPhase,
    PodWait,
    PutView,
    StartWorker,
    Stay,
    plan,
)

JOB = "sim"
ANSWER_SECONDS, STAY_SECONDS, FORCED_SECONDS = 0.5, 15.0, 2.0
"""The agent's, with a grace period of 30 s, and the kubelet's for a pod that is deleted by force."""
ALIVE = (WorkerPhase.STARTING, WorkerPhase.READY, WorkerPhase.FOLLOWING, WorkerPhase.RUNNING)


class Violation(AssertionError):  # noqa: N818
    """An invariant was broken."""


def job_spec(ranks: int, **parts: object) -> JobSpec:
    document = {
        "pipeline": {"stages": ranks, "microBatches": 2},
        "model": {"scratch": {"layers": 4}},
        "dataset": {"source": "d.csv", "text": ["text"], "label": "label"},
        "training": {"batchSize": 4},
        "output": {"path": "out"},
        **parts,
    }
    return JobSpec.model_validate(document)


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
    dark: bool = False
    """Its node has no power: nothing happens in it."""
    prepared: bool = False
    """The memory also has all gradients of the next step."""
    follower: Member | None = None
    """Who is to follow its worker."""
    deserted: bool = False
    """It follows on, but its source has let go of it and it has not heard of that."""
    handover: int = 0
    """The view that its worker is to leave for its follower."""
    node: str | None = "node"
    """None: no node takes it."""
    known: list[tuple[int, float]] = field(default_factory=list)
    """Checkpoints that its agent knows, and when they were made: those of its start, and those that its own worker made as rank 0."""
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


class Cluster:
    """Pods, storage and the stored status of one job of ``steps`` steps, on ``nodes``."""

    def __init__(self, spec: JobSpec, steps: int = 30, checkpoint_every: int = 5, nodes: tuple[str, ...] = ("node",)) -> None:
        self.spec = spec
        self.nodes = nodes
        self.steps = steps
        self.checkpoint_every = checkpoint_every
        self.now = 1_000_000.0
        self.status = JobStatus()
        self.pods: dict[str, Pod] = {}
        self.checkpoints: list[int] = []
        self.saved: dict[int, float] = {}
        """When each was made."""
        self.scan_once = False
        """An agent looks through the checkpoints when it starts, and then hears of those of its own worker alone."""
        self.exported = False
        self.interrupted = False
        self.ahead: dict[str, float] = {}
        """Seconds by which each node's clock is ahead of the operator's."""
        self.gpu = False
        """State goes with the worker's process."""
        self.move_request: str | None = None
        self.nodes_known = False
        """The operator may watch nodes."""
        self.user_error = False
        """The next worker that starts finds the data unusable."""
        self.addresses = 0
        self.views: dict[int, View] = {}
        self.committed_view = 0
        self.losses: dict[int, int] = {}
        """Times that each step was committed."""
        self.starts: list[tuple[str, int]] = []

    # What the operator sees and does.

    def look(self) -> tuple[PodObserved, ...]:
        return tuple(self._pod_observed(p) for p in self.pods.values() if not p.forced)

    def observed(self, pods: tuple[PodObserved, ...] | None = None) -> Observed:
        return Observed(
            name=JOB,
            spec=self.spec,
            status=self.status,
            pods=self.look() if pods is None else pods,
            generation=1,
            interrupted=self.interrupted,
            one_node=len(self.nodes) == 1,
            move_request=self.move_request,
            nodes=frozenset(self.nodes) if self.nodes_known else frozenset(),
        )

    def plan(self, pods: tuple[PodObserved, ...] | None = None) -> Plan:
        observed = self.observed(pods)
        made = plan(observed, self.now)
        if plan(observed, self.now) != made:
            raise Violation("the plan of one observation is not always the same")
        return made

    def write(self, status: JobStatus) -> None:
        old, new = self.status.view, status.view
        if old is not None and (new is None or new.number < old.number):
            raise Violation(f"the stored view fell from {old.number} to {new.number if new else None}")
        if old is not None and new is not None and new.number > old.number:
            # What only memory held may be lost with it, what is durable never.
            durable = max([s for s in self.checkpoints if s <= old.resume.step], default=0)
            if new.resume.step < durable:
                raise Violation(f"view {new.number} resumes at {new.resume.step}, a checkpoint is of step {durable}")
        if any(status.serials.get(rank, 0) < serial for rank, serial in self.status.serials.items()):
            raise Violation(f"a serial fell: {self.status.serials} to {status.serials}")
        if any(status.made.get(rank, 0) < serial for rank, serial in self.status.made.items()):
            raise Violation(f"a follower's serial fell: {self.status.made} to {status.made}")
        if status.restarts < self.status.restarts:
            raise Violation("restarts were forgotten")
        self.status = JobStatus.model_validate_json(status.to_json())

    def reconcile(
        self, pods: tuple[PodObserved, ...] | None = None, *, first: int | None = None, dropped: int | None = None
    ) -> Plan:
        """One pass; the operator dies after the ``first`` actions, or the message of action ``dropped`` is lost."""
        made = self.plan(pods)
        self.write(made.status)
        for index, action in enumerate(made.actions if first is None else made.actions[:first]):
            if index != dropped:
                self.apply(action)
        return made

    def apply(self, action: Action) -> None:
        match action:
            case CreatePod(None, serial):
                name = standby_name(JOB, serial)
                if name not in {standby.pod for standby in self.status.standbys}:
                    raise Violation(f"{name} is made before it is stored")
                self.pods.setdefault(name, Pod(name, None, serial, self.now, standby=True, listed=False))
            case CreatePod(int(rank), serial, avoid, wanted):
                name = pod_name(JOB, rank, serial)
                able = [node for node in self.nodes if node not in avoid and wanted in (None, node)]
                node = able[rank % len(able)] if able else None
                known = [(s, self.saved.get(s, 0.0)) for s in self.checkpoints]
                self.pods.setdefault(name, Pod(name, rank, serial, self.now, reachable=node is not None, node=node, known=known))
            case DeletePod(name):
                if name in self.pods and self.pods[name].told_to_end is not None and not self.pods[name].gone:
                    self.pods[name].draining = True  # it goes by itself
                else:
                    self.pods.pop(name, None)
            case StartWorker(name, incarnation, rank):
                self._start(name, incarnation, rank)
            case EnlistPod(name):
                if name in self.pods:
                    self.pods[name].listed = True
            case PutView(name, view):
                self._put_view(name, view)
            case LeaveView(name, number):
                pod = self.pods.get(name)
                if (
                    pod is not None
                    and self._answers(pod)
                    and not pod.dark
                    and pod.worker.phase in (WorkerPhase.RUNNING, WorkerPhase.FOLLOWING)
                    and pod.worker.view <= number
                ):
                    self._leave(pod, f"view {number} lost a member")
            case Follow(name, follower):
                if name in self.pods and self._answers(self.pods[name]):
                    self.pods[name].follower = follower
            case HandOver(name, number):
                if name in self.pods and self._answers(self.pods[name]):
                    self.pods[name].handover = max(self.pods[name].handover, number)
            case Stay(name):
                if name in self.pods and self._answers(self.pods[name]):
                    self.pods[name].staying = True
            case Drain(name):
                if name in self.pods and self._answers(self.pods[name]):
                    self.pods[name].draining = True

    def _start(self, name: str, incarnation: int, rank: int | None) -> None:
        pod = self.pods.get(name)
        if pod is None or not self._answers(pod) or pod.draining or incarnation <= pod.worker.incarnation:
            return
        if rank is not None:
            if not any((claim.pod, claim.rank) == (name, rank) for claim in self.status.claims):
                raise Violation(f"{name} is told to be rank {rank} before that is stored")
            if pod.rank not in (None, rank):
                raise Violation(f"{name} is rank {pod.rank} and is told to be rank {rank}")
            pod.rank, pod.warm = rank, False
        if pod.rank is None:
            raise Violation(f"worker {incarnation} of {name} is started without a rank")
        if self.gpu:
            pod.step, pod.prepared = None, False
        self.starts.append((name, incarnation))
        pod.worker = WorkerState(incarnation=incarnation, phase=WorkerPhase.STARTING, since=self.now, heartbeat=self.now)

    def _put_view(self, name: str, view: View) -> None:
        known = self.views.setdefault(view.number, view)
        if known != view:
            raise Violation(f"view {view.number} has two memberships")
        if self.status.view is None or self.status.view.number < view.number:
            raise Violation(f"view {view.number} was sent before it was stored")
        pod = self.pods.get(name)
        if pod is None or not self._answers(pod) or (pod.view is not None and view.number <= pod.view.number):
            return
        mine = next(m for m in view.members if m.rank == pod.rank)
        if (mine.pod, mine.incarnation) == (name, pod.worker.incarnation) and pod.worker.phase in ALIVE:
            pod.view = view

    @staticmethod
    def _answers(pod: Pod) -> bool:
        return not pod.gone and pod.reachable

    def _pod_observed(self, pod: Pod) -> PodObserved:
        if pod.node is None and not pod.gone:
            wait = PodWait("Unschedulable", "0 of 2 nodes are available", pod.created)
            return PodObserved(pod.name, pod.rank, pod.serial, PodPhase.PENDING, pod.created, waits=wait)
        phase = PodPhase.GONE if pod.gone else PodPhase.RUNNING
        if phase is PodPhase.RUNNING and pod.told_to_end is not None and pod.draining:
            return PodObserved(
                pod.name, None if pod.standby else pod.rank, pod.serial, PodPhase.TERMINATING, pod.created, pod.node
            )
        agent = None
        if self._answers(pod):
            known = pod.known if self.scan_once else [(s, self.saved.get(s, 0.0)) for s in self.checkpoints]
            infos = [CheckpointInfo(name=checkpoint_name(s), step=s, time=time) for s, time in reversed(known)]
            ahead = self.ahead.get(pod.node or "", 0.0)
            times = {"since": pod.worker.since + ahead, "heartbeat": pod.worker.heartbeat + ahead}
            agent = AgentState(
                pod=pod.name,
                rank=pod.rank,
                warm=pod.warm,
                started=pod.created + ahead,
                view=pod.view,
                worker=pod.worker.model_copy(update=times) if ahead else pod.worker,
                checkpoints=infos,
                scanned=True,
                leaving=pod.told_to_end is not None,
                staying=pod.staying,
                draining=pod.draining,
                follower=pod.follower,
                handover=pod.handover,
            )
        code = -9 if pod.gone else None
        rank = None if pod.standby else pod.rank
        since = pod.unreachable_since
        return PodObserved(
            pod.name,
            rank,
            pod.serial,
            phase,
            pod.created,
            pod.node,
            code,
            None,
            agent,
            since,
            dark=(pod.dark or pod.cut) and not pod.reachable,
            unlisted=not pod.listed,
            leaves=agent is not None and agent.leaving and not agent.draining,
        )

    # What the world does by itself.

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes; every worker takes its next step of life, and a complete view commits a training step."""
        self.now += seconds
        for pod in self.pods.values():
            pod.unreachable_since = None if self._answers(pod) else (pod.unreachable_since or self.now)
            if not pod.gone and not pod.dark:
                self._leave_in_time(pod)
                self._live(pod)
        self._follow()
        self._train()

    def tell_to_end(self, pod: Pod) -> None:
        """Somebody deletes it: its agent is told to end."""
        if pod.worker.phase is WorkerPhase.RUNNING:
            pod.told_to_end = self.now
        else:
            pod.told_to_end, pod.draining = self.now, True

    def force(self, pod: Pod) -> None:
        """Somebody deletes it by force."""
        self.tell_to_end(pod)
        pod.forced = True

    def _leave_in_time(self, pod: Pod) -> None:
        """It may stay for so long, and is gone when its worker has left, or when its grace period is over."""
        if pod.told_to_end is None:
            return
        since = self.now - pod.told_to_end
        pod.draining = pod.draining or since > (STAY_SECONDS if pod.staying else ANSWER_SECONDS)
        idle = pod.worker.incarnation == 0 or pod.worker.phase not in ALIVE
        pod.gone = since > (FORCED_SECONDS if pod.forced else 2 * STAY_SECONDS) or (pod.draining and idle)

    def _live(self, pod: Pod) -> None:
        worker = pod.worker
        if worker.incarnation == 0:
            pod.warm = pod.rank is None
            return
        if worker.phase is WorkerPhase.STARTING:
            if self.user_error:
                self._exit(pod, USER_ERROR, "column 'text' is not in d.csv")
                return
            self.addresses += 1
            self._become(pod, WorkerPhase.READY, address=f"127.0.0.1:{self.addresses}", **self._has(pod))
        elif worker.phase is WorkerPhase.READY:
            if pod.draining:
                self._become(pod, WorkerPhase.DRAINED)
            elif pod.view is not None and pod.view.number > worker.view and self._is_member(pod, pod.view):
                self._join(pod, pod.view)
        elif worker.phase is WorkerPhase.FOLLOWING and pod.draining:
            self._become(pod, WorkerPhase.DRAINED)
        elif worker.phase is WorkerPhase.RUNNING and (lost := self._lost_peer(pod)):
            self._leave(pod, lost)

    def _follow(self) -> None:
        """Streams begin, get level, and end with their source."""
        streams = {}
        for source in self.pods.values():
            if source.follower is None or source.gone or source.dark or source.worker.phase is not WorkerPhase.RUNNING:
                continue
            target = self._target(source)
            if target is None:
                source.follower = None  # its worker tells that it was lost
                continue
            streams[target.name] = source
            if target.worker.phase is WorkerPhase.READY:
                target.step, target.prepared = None, False
                self._become(target, WorkerPhase.FOLLOWING, holding=None)
            elif target.step is None:
                target.step = source.step
                self._become(target, WorkerPhase.FOLLOWING, holding=target.holding)
        for pod in self.living():
            if pod.worker.phase is WorkerPhase.FOLLOWING and pod.name not in streams and not pod.dark and not pod.deserted:
                self._leave(pod, "its source is gone")

    def _target(self, source: Pod) -> Pod | None:
        """The living follower of ``source``."""
        wanted = source.follower
        pod = self.pods.get(wanted.pod) if wanted is not None else None
        if wanted is None or pod is None or pod.gone or pod.dark or pod.worker.incarnation != wanted.incarnation:
            return None
        return pod if pod.worker.phase in (WorkerPhase.READY, WorkerPhase.FOLLOWING) else None

    def _tell_follower(self, source: Pod, committed: bool) -> None:
        """A follower that is level has each step's gradients before the step is told as prepared, and hears of the commit after it."""
        target = self._target(source)
        if target is not None and target.worker.phase is WorkerPhase.FOLLOWING and target.step is not None:
            target.step, target.prepared = (source.step, False) if committed else (target.step, True)

    def _leave(self, pod: Pod, why: str) -> None:
        pod.deserted = False
        self._become(pod, WorkerPhase.READY, lost=why, **self._has(pod))

    def _has(self, pod: Pod) -> dict[str, object]:
        pod.snapshots_wanted = self.spec.recovery.memory_snapshot is not None
        return {"holding": pod.holding, "snapshots": pod.snapshots}

    @staticmethod
    def _is_member(pod: Pod, view: View) -> bool:
        return any((m.pod, m.incarnation) == (pod.name, pod.worker.incarnation) for m in view.members)

    def _join(self, pod: Pod, view: View) -> None:
        for other in self.pods.values():
            running = other.worker.phase is WorkerPhase.RUNNING and not other.gone
            if other is not pod and running and other.rank == pod.rank and other.worker.view == view.number:
                raise Violation(f"view {view.number} has two living members of rank {pod.rank}")
        resume = view.resume
        newest = -1 if _anew(resume) else resume.step if resume.common_snapshot is None else resume.common_snapshot
        pod.own, pod.kept = ([step for step in steps if step <= newest] for steps in (pod.own, pod.kept))
        if resume.snapshot and not self._restore(pod, view):
            pod.step, pod.prepared = None, False
            why = f"rank {pod.rank} does not get the snapshot of step {resume.step}"
            self._become(pod, WorkerPhase.READY, view=view.number, lost=why, **self._has(pod))
            return
        behind = pod.rank != resume.told_by and pod.prepared and pod.step == resume.step - 1
        if resume.checkpoint is None and resume.step > 0 and pod.step != resume.step and not behind:
            raise Violation(f"view {view.number} resumes at {resume.step} from memory, {pod.name} holds {pod.holding}")
        if resume.checkpoint is not None and resume.step not in self.checkpoints:
            raise Violation(f"view {view.number} resumes from a checkpoint of step {resume.step}, which was never taken")
        pod.step, pod.prepared = resume.step, False
        at = Progress(step=pod.step, steps=self.steps, epoch=0.0)
        self._become(
            pod, WorkerPhase.RUNNING, view=view.number, progress=at, lost=None, holding=None, snapshots=None, lost_rank=None
        )

    def _restore(self, pod: Pod, view: View) -> bool:
        """Whether the pod has the view's snapshot now, its own or its neighbour's."""
        step = view.resume.step
        if (pod.rank in view.resume.fetched) == (step in pod.own):
            raise Violation(f"{pod.name} has snapshots of {pod.own}, and is told to fetch: {view.resume.fetched}")
        if step not in pod.own:
            source = self._next(pod, view)
            if source is None:
                return False
            if step not in source.kept:
                raise Violation(f"{source.name} is to give the snapshot of step {step}, and keeps {source.kept}")
            pod.own = [step]
        pod.step, pod.prepared = step, False
        return True

    def _next(self, pod: Pod, view: View) -> Pod | None:
        """The living pod of the next rank, which keeps the rank's snapshots."""
        member = view.members[((pod.rank or 0) + 1) % len(view.members)]
        other = self.pods.get(member.pod)
        there = other is not None and not other.gone and not other.dark and other.worker.incarnation == member.incarnation
        return other if there else None

    def _snap(self, view: View, group: list[Pod], step: int) -> None:
        """The newest snapshots get to the neighbours; where all were there already, the next is begun when it is due."""
        every = self.spec.recovery.memory_snapshot
        if every is None:
            return
        unsent = False
        for pod in group:
            source = self._next(pod, view)
            if source is not None and pod.own and pod.own[0] not in source.kept:
                unsent = True
                source.kept = sorted([*source.kept, pod.own[0]], reverse=True)[:2]
        # A pod that took another's place has none, and its state is not durable.
        bare = not _anew(view.resume) and any(not pod.own for pod in group)
        if (bare or step % every.every_steps == 0) and step < self.steps and not unsent:
            for pod in group:
                pod.own = [step, *(s for s in pod.own if s != step)][:2]

    def _lost_peer(self, pod: Pod) -> str | None:
        """Why the worker's view is broken: a member died, or went to another view."""
        if pod.view is not None and pod.view.number > pod.worker.view:
            return f"view {pod.view.number} follows"
        for member in self.views[pod.worker.view].members:
            peer = self.pods.get(member.pod)
            if peer is None or peer.gone or peer.worker.incarnation != member.incarnation or peer.worker.phase not in ALIVE:
                if peer is not None and peer.worker.phase in (WorkerPhase.COMPLETED, WorkerPhase.DRAINED) and not peer.gone:
                    continue
                return f"rank {member.rank} is gone"
            if peer.worker.view > pod.worker.view or (
                peer.worker.phase is WorkerPhase.READY and peer.worker.view == pod.worker.view
            ):
                return f"rank {member.rank} left the view"
        return None

    def _train(self) -> None:
        for view in list(self.views.values()):
            members = [self.pods.get(m.pod) for m in view.members]
            group = [p for p in members if p is not None and not p.gone and p.worker.view == view.number]
            if len(group) != len(members):
                continue
            if all(p.worker.phase is WorkerPhase.RUNNING for p in group):
                self._commit(view, group)
            elif group[0].worker.phase is WorkerPhase.COMPLETED:
                for pod in group:
                    if pod.worker.phase is WorkerPhase.RUNNING:
                        self._become(pod, WorkerPhase.COMPLETED)

    def _commit(self, view: View, group: list[Pod]) -> None:
        if view.number < self.committed_view:
            raise Violation(f"view {view.number} commits after view {self.committed_view} did")
        self.committed_view = view.number
        steps = {p.step for p in group}
        if len(steps) != 1:
            raise Violation(f"members of view {view.number} are at different steps: {steps}")
        step = group[0].step or 0
        if step < self.steps:
            step += 1
            self.losses[step] = self.losses.get(step, 0) + 1
            for pod in group:
                pod.step, pod.prepared = step, False
                at = Progress(step=step, steps=self.steps, epoch=step / 10, loss=1.0 / step)
                pod.worker = pod.worker.model_copy(update={"progress": at, "heartbeat": self.now})
                self._tell_follower(pod, committed=True)
        self._snap(view, group, step)
        stop = any(pod.draining for pod in group)
        if step % self.checkpoint_every == 0 or step == self.steps or stop:
            self.save(step, group[0])
        if step == self.steps:
            self.exported = True
            self._become(group[0], WorkerPhase.COMPLETED)
        elif any(self._hands_over(pod, view) for pod in group):
            for pod in group:
                if self._hands_over(pod, view):
                    target, pod.follower = self._target(pod), None
                    assert target is not None
                    self._leave(target, "it takes over")
                self._leave(pod, f"a follower takes over at step {step}")
        elif stop:
            for pod in group:
                if pod.draining:
                    self._become(pod, WorkerPhase.DRAINED)
                else:
                    self._leave(pod, f"a member left at step {step}")

    def _hands_over(self, pod: Pod, view: View) -> bool:
        target = self._target(pod)
        follows = target is not None and target.worker.phase is WorkerPhase.FOLLOWING and target.step is not None
        return follows and pod.handover >= view.number

    def save(self, step: int, writer: Pod | None = None) -> None:
        if self.checkpoints and step < self.checkpoints[-1]:
            raise Violation(f"a checkpoint of step {step} follows one of step {self.checkpoints[-1]}")
        if step not in self.checkpoints:
            self.checkpoints.append(step)
            self.saved[step] = self.now
            if writer is not None:
                writer.known.append((step, self.now))

    def _become(self, pod: Pod, phase: WorkerPhase, **changes: object) -> None:
        pod.worker = pod.worker.model_copy(update={"phase": phase, "since": self.now, "heartbeat": self.now, **changes})

    def _exit(self, pod: Pod, code: int, message: str) -> None:
        self._become(pod, WorkerPhase.EXITED, exit=Exit(code=code, message=message), address=None)

    # What goes wrong.

    def living(self) -> list[Pod]:
        return [p for p in self.pods.values() if not p.gone]

    def kill_worker(self, pod: Pod) -> None:
        if pod.worker.incarnation and pod.worker.phase in ALIVE:
            self._exit(pod, -9, "killed by SIGKILL")

    def kill_pod(self, pod: Pod) -> None:
        pod.gone = True

    def break_link(self, pod: Pod) -> None:
        if pod.worker.phase is WorkerPhase.RUNNING:
            self._leave(pod, "connection reset by peer")

    def cut_power(self, pod: Pod) -> None:
        """Nobody hears of the pod any more; its peers notice by its silence."""
        pod.reachable, pod.dark = False, True
        for other in self.living():
            if other is not pod and other.worker.phase is WorkerPhase.RUNNING and other.worker.view == pod.worker.view:
                self._become(other, WorkerPhase.READY, lost=f"rank {pod.rank} is lost", lost_rank=pod.rank, holding=other.holding)

    def let_go(self, source: Pod) -> None:
        """Its follower did not take the gradients in time, and hears nothing: it was stopped, or its network was."""
        target = self._target(source)
        if target is not None:
            source.follower, target.deserted = None, True

    def half_commit(self) -> None:
        """Rank 0 commits a step and takes it; the others have its gradients, and lose their connections before they hear of it."""
        for view in self.views.values():
            group = [p for m in view.members if (p := self.pods.get(m.pod)) is not None and not p.gone]
            there = [p for p in group if p.worker.phase is WorkerPhase.RUNNING and p.worker.view == view.number]
            if len(there) != len(view.members) or len({p.step for p in there}) != 1 or (there[0].step or 0) >= self.steps:
                continue
            if view.number < self.committed_view:
                raise Violation(f"view {view.number} commits after view {self.committed_view} did")
            self.committed_view = view.number
            first, *others = there
            first.step = (first.step or 0) + 1
            self.losses[first.step] = self.losses.get(first.step, 0) + 1
            self._tell_follower(first, committed=False)
            for pod in others:
                pod.prepared = True
                self._tell_follower(pod, committed=False)
                self.break_link(pod)


def _anew(resume: Resume) -> bool:
    """Whether nothing that is in memory counts."""
    return resume.checkpoint is not None or resume.step == 0
