"""A cluster of a few dataclasses whose agents follow the protocol, and the operator's way to it."""

from collections.abc import Sequence
from dataclasses import replace

from lmj_api.cut import Cut
from lmj_api.names import checkpoint_name, pod_name, standby_name
from lmj_api.protocol import AgentState, CheckpointInfo, MachineNotice, Recut, WorkerPhase, WorkerState
from lmj_api.spec import JobSpec
from lmj_api.spec.migration import MigrationStrategy
from lmj_api.status import JobStatus
from lmj_api.topology import FIRST
from lmj_api.view import View
from lmj_operator.backend.ages import by_own_clock
from lmj_operator.backend.kubernetes.pod_state import with_notice
from lmj_operator.plan import (
    Action,
    CreatePod,
    DeletePod,
    Drain,
    EnlistPod,
    Follow,
    FollowParts,
    HandOver,
    LeaveView,
    Look,
    Observed,
    Pause,
    Plan,
    PodObserved,
    PodPhase,
    PodWait,
    PutView,
    StartWorker,
    Stay,
    plan,
)
from lmj_operator.plan.membership.looking import LOOK_SECONDS

from .pod import ALIVE, Pod, Violation
from .world import World

JOB = "sim"


class Cluster(World):
    """The stored status of a job, what the operator sees of its pods, and what it does to them."""

    def __init__(self, spec: JobSpec, steps: int = 30, checkpoint_every: int = 5, nodes: tuple[str, ...] = ("node",)) -> None:
        super().__init__(spec, steps, checkpoint_every, nodes)
        self.status = JobStatus()
        self.interrupted = False
        self.move_request: str | None = None
        self.nodes_known = False
        """The operator may watch nodes."""
        self.ahead: dict[str, float] = {}
        """Seconds by which each node's clock is ahead of the true time."""
        self.operator_ahead = 0.0
        """The same of the operator's: another operator, on another machine, may take its place at any time."""
        self.gpu = False
        """State goes with the worker's process."""
        self.starts: list[tuple[str, int]] = []
        self._planned = 0
        self._heard: set[int] = set()
        """Steps of the checkpoints that the newest plan could know of."""

    def look(self) -> tuple[PodObserved, ...]:
        return tuple(self._pod_observed(p) for p in self.pods.values() if not p.forced)

    def scale(self, replicas: int) -> None:
        """Somebody wants so many."""
        parts = self.spec.data_parallel.model_copy(update={"replicas": replicas})
        self.spec = self.spec.model_copy(update={"data_parallel": parts})

    def recut(self, stages: int, layers: list[int] | None = None) -> None:
        """Somebody wants the layers in so many stages."""
        self.spec = self.spec.cut_into(Cut(stages=stages, layers=layers))

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
        told = [c.step for pod in observed.pods if pod.agent is not None for c in pod.agent.checkpoints]
        self._heard = {*told, *([self.status.checkpoint.step] if self.status.checkpoint is not None else [])}
        now = self.now + self.operator_ahead
        made = plan(observed, now)
        # Planning twice costs twice as much: so it is the first passes, and every fourth of the others.
        if (self._planned < 8 or self._planned % 4 == 0) and _content(plan(observed, now)) != _content(made):
            raise Violation("the plan of one observation is not always the same")
        self._planned += 1
        return made

    def write(self, status: JobStatus) -> None:
        old, new, since = self.status.view, status.view, self.status.look_since
        if old is not None and (new is None or new.number < old.number):
            raise Violation(f"the stored view fell from {old.number} to {new.number if new else None}")
        if old is not None and new is not None and new.number > old.number:
            # What only memory held may be lost with it, what is durable never; nor what a pod that is told to end is about to save.
            # Storage that did not answer for so long may have had one that nobody heard of.
            waited = since is not None and self.now + self.operator_ahead - since >= LOOK_SECONDS
            durable = max([s for s in (self._heard if waited else self.checkpoints) if not self._is_stray(s, old)], default=0)
            if new.resume.told_by not in [m.rank for m in new.members]:
                raise Violation(f"view {new.number}: rank {new.resume.told_by}, which is not in it, is to say what was committed")
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
                cut = action.cut or self.spec.pipeline.cut
                self.pods.setdefault(name, Pod(name, None, serial, self.now, standby=True, listed=False, layers=cut))
            case CreatePod(int(rank), serial, avoid, wanted, cut):
                name = pod_name(JOB, rank, serial)
                able = [node for node in self.nodes if node not in avoid and wanted in (None, node)]
                node = able[rank % len(able)] if able else None
                made = Pod(
                    name, rank, serial, self.now, reachable=node is not None, node=node, layers=cut or self.spec.pipeline.cut
                )
                self.pods.setdefault(name, made)
                if rank == FIRST:
                    self.look_through(self.pods[name])
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
                    and self.answers(pod)
                    and not pod.dark
                    and pod.worker.phase in (WorkerPhase.RUNNING, WorkerPhase.FOLLOWING)
                    and pod.worker.view <= number
                ):
                    self._leave(pod, f"view {number} lost a member")
            case Follow(name, follower):
                if name in self.pods and self.answers(self.pods[name]):
                    self.pods[name].follower = follower
            case FollowParts(name, recut):
                if name in self.pods and self.answers(self.pods[name]):
                    self._stored(recut)
                    self.pods[name].recut = recut
            case HandOver(name, number):
                if name in self.pods and self.answers(self.pods[name]):
                    self.pods[name].handover = max(self.pods[name].handover, number)
            case Pause(name, number):
                if name in self.pods and self.answers(self.pods[name]):
                    self.pods[name].pause = max(self.pods[name].pause, number)
            case Stay(name):
                if name in self.pods and self.answers(self.pods[name]):
                    self.pods[name].staying = True
            case Look(name, number, names):
                pod = self.pods.get(name)
                if pod is not None and self.answers(pod) and number > max(pod.looked, pod.look[0] if pod.look else 0):
                    self.look_through(pod, number, names)
            case Drain(name):
                if name in self.pods and self.answers(self.pods[name]):
                    self.pods[name].draining = True

    def _stored(self, recut: Recut | None) -> None:
        known = {} if self.status.recut is None else {entry.pod: entry.serial for entry in self.status.recut.followers}
        for member in recut.followers if recut is not None else ():
            if member.pod not in known:
                raise Violation(f"{member.pod} is to follow before it is stored")

    def _is_stray(self, step: int, newest: View) -> bool:
        """Whether an older view than ``newest`` saved it, of a step that this one does itself."""
        return self.written.get(step, newest.number) < newest.number and step > newest.resume.step

    def _start(self, name: str, incarnation: int, rank: int | None) -> None:
        pod = self.pods.get(name)
        if pod is None or not self.answers(pod) or pod.draining or incarnation <= pod.worker.incarnation:
            return
        if rank is not None:
            if not any((promotion.pod, promotion.rank) == (name, rank) for promotion in self.status.promotions):
                raise Violation(f"{name} is told to be rank {rank} before that is stored")
            if pod.rank not in (None, rank):
                raise Violation(f"{name} is rank {pod.rank} and is told to be rank {rank}")
            pod.rank, pod.warm = rank, False
            if rank == FIRST:
                self.look_through(pod)
        if pod.rank is None:
            raise Violation(f"worker {incarnation} of {name} is started without a rank")
        if self.gpu:
            pod.step, pod.prepared = None, False
        pod.updated = None
        self.starts.append((name, incarnation))
        pod.worker = WorkerState(incarnation=incarnation, phase=WorkerPhase.STARTING, since=self.now, heartbeat=self.now)

    def _put_view(self, name: str, view: View) -> None:
        known = self.views.setdefault(view.number, view)
        if known is not view and known != view:
            raise Violation(f"view {view.number} has two memberships")
        if self.status.view is None or self.status.view.number < view.number:
            raise Violation(f"view {view.number} was sent before it was stored")
        pod = self.pods.get(name)
        if pod is None or not self.answers(pod) or (pod.view is not None and view.number <= pod.view.number):
            return
        if any(self.pods[m.pod].layers != view.cut for m in view.members if m.pod in self.pods):
            raise Violation(f"view {view.number} is in {view.cut}, and not all of its members are")
        if self._is_member(pod, known) and pod.worker.phase in ALIVE:
            pod.view = known

    def _is_hurried(self, pod: Pod) -> bool:
        """Whether it has no time to stay for another, or is not let: then it only drains."""
        return pod.hurried or self.spec.migration.strategy is not MigrationStrategy.LIVE

    def _pod_observed(self, pod: Pod) -> PodObserved:
        """As a backend sees it: all times are by the operator's clock."""
        seen = self._seen(pod)
        ahead = self.operator_ahead
        since = seen.unreachable_since
        return replace(
            seen,
            created=seen.created + ahead,
            unreachable_since=since + ahead if since is not None else None,
            waits=replace(seen.waits, since=seen.waits.since + ahead) if seen.waits is not None else None,
            agent=by_own_clock(seen.agent, 0.0, self.now + ahead) if seen.agent is not None else None,
        )

    def _seen(self, pod: Pod) -> PodObserved:
        if pod.node is None and not pod.gone:
            wait = PodWait("Unschedulable", "0 of 2 nodes are available", pod.created)
            return PodObserved(pod.name, pod.rank, pod.serial, PodPhase.PENDING, pod.created, waits=wait, cut=pod.layers)
        phase = PodPhase.GONE if pod.gone else PodPhase.RUNNING
        if phase is PodPhase.RUNNING and pod.told_to_end is not None and (pod.draining or self._is_hurried(pod)):
            phase = PodPhase.TERMINATING
        agent = None
        if self.answers(pod):
            infos = [
                CheckpointInfo(name=checkpoint_name(s, self.written.get(s)), step=s, time=self.saved[s])
                for s in sorted(pod.known, reverse=True)
            ]
            ahead = self.ahead.get(pod.node or "", 0.0)
            times = {"since": pod.worker.since + ahead, "heartbeat": pod.worker.heartbeat + ahead}
            agent = AgentState(
                pod=pod.name,
                rank=pod.rank,
                warm=pod.warm,
                started=pod.created + ahead,
                clock=self.now + ahead,
                view=pod.view,
                worker=pod.worker.model_copy(update=times) if ahead else pod.worker,
                checkpoints=infos,
                scanned=pod.scanned,
                looked=pod.looked,
                leaving=pod.told_to_end is not None,
                staying=pod.staying,
                draining=pod.draining,
                follower=pod.follower,
                recut=pod.recut,
                handover=pod.handover,
                pause=pod.pause,
                notice=_ahead(pod.notice, ahead),
            ).for_one_who_knows(self.status.view.number if self.status.view is not None else 0)
        code = -9 if pod.gone else None
        rank = None if pod.standby else pod.rank
        since = pod.unreachable_since
        seen = PodObserved(
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
            disrupted=pod.disrupted,
            cut=pod.layers,
            leaves=phase is PodPhase.RUNNING and agent is not None and agent.leaving and not agent.draining,
        )
        return with_notice(seen)


def _ahead(notice: MachineNotice | None, seconds: float) -> MachineNotice | None:
    """As a clock that is so much ahead has it."""
    return notice if notice is None or notice.at is None else notice.model_copy(update={"at": notice.at + seconds})


def _content(made: Plan) -> tuple[Plan, Sequence[object], dict[int, View]]:
    """What is compared of two plans: a view that all members are told is looked at once."""
    views = {action.view.number: action.view for action in made.actions if isinstance(action, PutView)}
    actions = [(action.pod, action.view.number) if isinstance(action, PutView) else action for action in made.actions]
    return replace(made, actions=()), actions, views
