"""What happens in a cluster by itself, with a clock of its own: workers train, follow, leave and die."""

from collections.abc import Callable, Collection

from lmj_api.names import checkpoint_name
from lmj_api.protocol import USER_ERROR, Copied, Exit, MachineNotice, Progress, WorkerPhase
from lmj_api.shards import share
from lmj_api.spec import JobSpec
from lmj_api.view import Member, Resume, View

from .pod import ALIVE, Pod, Violation

ANSWER_SECONDS, STAY_SECONDS, FORCED_SECONDS = 0.5, 15.0, 2.0
"""The agent's, with a grace period of 30 s, and the kubelet's for a pod that is deleted by force."""

FORGOTTEN_SECONDS = 10.0
"""After a machine was taken away the cluster has no pod of it any more."""
SIZE = 100
"""Bytes of a rank's state."""


class World:
    """Pods and storage of one job of ``steps`` steps, on ``nodes``: what happens there, whoever looks."""

    def __init__(self, spec: JobSpec, steps: int = 30, checkpoint_every: int = 5, nodes: tuple[str, ...] = ("node",)) -> None:
        self.spec = spec
        self.nodes = nodes
        self.steps = steps
        self.checkpoint_every = checkpoint_every
        self.now = 1_000_000.0
        self.pods: dict[str, Pod] = {}
        self.checkpoints: list[int] = []
        self.saved: dict[int, float] = {}
        """When each was made."""
        self.written: dict[int, int] = {}
        """The view that made it; one that a test made is of none."""
        self.save_seconds = 0.0
        """What a last checkpoint takes. All who leave with it wait for it."""
        self._saves: tuple[int, int, float] | None = None
        """The last checkpoint that is being written: its view, its step, and when it will be there."""
        self.hangs = False
        """The storage of checkpoints answers nothing."""
        self.over = 0
        """The newest view that an agent declared over in the storage: what is saved in it, or before, is refused."""
        self.tick_seconds = 0.0
        self.exported = False
        self.user_error = False
        """The next worker that starts finds the data unusable."""
        self.addresses = 0
        self.views: dict[int, View] = {}
        self.committed_view = 0
        self.losses: dict[int, int] = {}
        """Times that each step was committed."""
        self.shard_seconds: Callable[[Pod], float] = lambda pod: 1.0
        """What a shard takes a pod."""
        self._members: dict[int, dict[str, int]] = {}
        """Of each view: the worker that is its member in each pod."""
        self._joined: dict[tuple[int, int | None], list[str]] = {}
        """Pods that joined a view as a rank."""
        self._whole: set[int] = set()
        """Views that were found to have all of their members, and nothing happened to one since."""
        self.cables: set[tuple[str | None, str | None]] = set()
        """Broken ones: what the first node sends does not get to the second. All else does, and the operator reaches both."""

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes; every worker takes its next step of life, and a complete view commits a training step."""
        self.now += seconds
        self.tick_seconds = seconds
        self._whole.clear()
        for pod in self.pods.values():
            pod.unreachable_since = None if self.answers(pod) else (pod.unreachable_since or self.now)
            if not pod.gone and not pod.dark:
                self._look_through(pod)
                self._leave_in_time(pod)
                self._live(pod)
            self._go_in_time(pod)
        self._follow()
        self._train()

    def tell_to_end(self, pod: Pod, *, hurried: bool = False) -> None:
        """Somebody deletes it: its agent is told to end."""
        pod.hurried = hurried
        if pod.worker.phase is WorkerPhase.RUNNING:
            pod.told_to_end = self.now
        else:
            pod.told_to_end, pod.draining = self.now, True

    def evict(self, pod: Pod, why: str = "it was evicted") -> None:
        """The cluster takes it away, and its node gives it no time."""
        self.tell_to_end(pod, hurried=True)
        pod.disrupted = why

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
        self._whole.discard(pod.worker.view)

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
        elif worker.phase is WorkerPhase.RUNNING and (peer := self._unheard_by(pod)) is not None:
            self._leave(pod, f"rank {peer} is lost: nothing is acknowledged", peer)
        elif worker.phase is WorkerPhase.RUNNING and (lost := self._lost_peer(pod)):
            self._leave(pod, lost)

    def _follow(self) -> None:
        """Streams begin, get in sync, and end with their source."""
        streams = self._follow_parts()
        for source in self.pods.values():
            if source.follower is None or source.gone or source.dark or source.worker.phase is not WorkerPhase.RUNNING:
                continue
            target = self._target(source)
            if target is None:
                source.follower = None  # its worker tells that it was lost
                continue
            streams[target.name] = source
            if target.worker.phase is WorkerPhase.READY:
                # One that has followed before, and lacks no step, has all: nothing is copied.
                target.step, target.prepared = source.step if target.step == source.step else None, False
                copied = Copied(size=SIZE) if target.step is None else target.worker.copied
                self._become(target, WorkerPhase.FOLLOWING, holding=target.holding, copied=copied)
            elif target.step is None:
                target.step = source.step
                there = Copied(done=SIZE, size=SIZE, step=source.step, in_sync_step=source.step, digest=f"digest {source.step}")
                self._become(target, WorkerPhase.FOLLOWING, holding=target.holding, copied=there)
        for pod in self.living():
            if pod.worker.phase is WorkerPhase.FOLLOWING and pod.name not in streams and not pod.dark and not pod.deserted:
                self._leave(pod, "its source is gone")

    def _follow_parts(self) -> dict[str, Pod]:
        """Workers of another cut follow every rank of a replica, or none: what is lost of one ends all. By the follower's name."""
        streams: dict[str, list[Pod]] = {}
        for source in self.living():
            if source.recut is None or source.dark or source.worker.phase is not WorkerPhase.RUNNING:
                continue
            for member in list(source.recut.followers):
                target = self._living(source, member)
                if target is None:
                    rest = [m for m in source.recut.followers if m != member]
                    source.recut = source.recut.model_copy(update={"followers": rest})
                else:
                    streams.setdefault(target.name, []).append(source)
        for name, sources in streams.items():
            target = self.pods[name]
            if not target.sources <= {source.name for source in sources}:
                streams[name] = []
                continue
            if target.worker.phase is WorkerPhase.READY:
                # One that has followed before, and lacks no step, has all: nothing is copied.
                same = {source.step for source in sources} == {target.step}
                target.step, target.prepared = target.step if same else None, False
                self._become(target, WorkerPhase.FOLLOWING, holding=target.holding if self._is_whole(sources) else None)
            elif target.step is None and self._is_whole(sources):
                target.step, target.prepared = sources[0].step, False
                there = Copied(done=SIZE, size=SIZE, step=target.step, in_sync_step=target.step, digest=f"digest {target.step}")
                self._become(target, WorkerPhase.FOLLOWING, holding=target.holding, copied=there)
            target.sources = frozenset(source.name for source in sources)
        return {name: sources[0] for name, sources in streams.items() if sources}

    @staticmethod
    def _is_whole(sources: list[Pod]) -> bool:
        """Whether they have all of the state between them, of one step."""
        stages = sources[0].layers.stages if sources[0].layers is not None else 0
        replicas = {(source.rank or 0) // stages for source in sources}
        return len(replicas) == 1 and len(sources) == stages and len({source.step for source in sources}) == 1

    def _parts(self, source: Pod) -> list[Pod]:
        """Those that follow its parts, and are in sync."""
        members = source.recut.followers if source.recut is not None else []
        found = [self._living(source, member) for member in members]
        return [t for t in found if t is not None and t.step is not None and source.name in t.sources]

    def _target(self, source: Pod) -> Pod | None:
        """The living follower of ``source``."""
        return self._living(source, source.follower)

    def _living(self, source: Pod, wanted: Member | None) -> Pod | None:
        """Who is ``wanted`` to follow ``source``, where it lives."""
        pod = self.pods.get(wanted.pod) if wanted is not None else None
        if wanted is None or pod is None or pod.gone or pod.dark or pod.worker.incarnation != wanted.incarnation:
            return None
        if self._cut_off(source, pod):
            return None
        return pod if pod.worker.phase in (WorkerPhase.READY, WorkerPhase.FOLLOWING) else None

    def _tell_follower(self, source: Pod, committed: bool) -> None:
        """A follower that is in sync has each step's gradients before the step is told as prepared, and hears of the commit after it."""
        target = self._target(source)
        if target is not None and target.worker.phase is WorkerPhase.FOLLOWING and target.step is not None:
            target.step, target.prepared = (source.step, False) if committed else (target.step, True)
            target.updated = self.now if committed else target.updated
        for part in self._parts(source):
            if committed:
                # The first word of a commit is enough.
                part.step, part.prepared, part.told, part.updated = source.step, False, frozenset(), self.now
            else:
                part.told |= {source.name}
                part.prepared = part.told == part.sources

    def _leave(self, pod: Pod, why: str, rank: int | None = None) -> None:
        """``rank``: the peer that it lost."""
        pod.deserted, pod.sources, pod.told = False, frozenset(), frozenset()
        self._become(pod, WorkerPhase.READY, lost=why, lost_rank=rank, **self._has(pod))

    def _cut_off(self, one: Pod, other: Pod) -> bool:
        """Whether no connection between the two holds: one way is enough for that."""
        return bool(self.cables) and not self.cables.isdisjoint({(one.node, other.node), (other.node, one.node)})

    def _apart(self, group: Collection[Pod]) -> bool:
        """Whether a connection between two of ``group`` does not hold."""
        nodes = {pod.node for pod in group}
        return any(one in nodes and other in nodes for one, other in self.cables)

    def _unheard_by(self, pod: Pod) -> int | None:
        """The peer of its view that does not hear it any more, as the kernel tells it; None: all do."""
        if not self.cables:
            return None
        peers = ((m.rank, self.pods.get(m.pod)) for m in self.views[pod.worker.view].members)
        return next((rank for rank, peer in peers if peer is not None and (pod.node, peer.node) in self.cables), None)

    def _has(self, pod: Pod) -> dict[str, object]:
        pod.snapshots_wanted = self.spec.recovery.memory_snapshot is not None
        return {"holding": pod.holding, "snapshots": pod.snapshots}

    def _is_member(self, pod: Pod, view: View) -> bool:
        members = self._members.get(view.number)
        if members is None:
            members = self._members[view.number] = {m.pod: m.incarnation for m in view.members}
        return members.get(pod.name) == pod.worker.incarnation

    def _join(self, pod: Pod, view: View) -> None:
        if self.hangs and view.resume.checkpoint is not None:
            return  # it is read, for as long as it takes
        joined = self._joined.setdefault((view.number, pod.rank), [])
        for other in (self.pods[name] for name in joined if name in self.pods):
            running = other.worker.phase is WorkerPhase.RUNNING and not other.gone
            if other is not pod and running and other.worker.view == view.number:
                raise Violation(f"view {view.number} has two living members of rank {pod.rank}")
        joined.append(pod.name)
        resume = view.resume
        newest = -1 if _anew(resume) else resume.step if resume.common_snapshot is None else resume.common_snapshot
        pod.own, pod.kept = ([step for step in steps if step <= newest] for steps in (pod.own, pod.kept))
        if resume.snapshot and not self._restore(pod, view):
            pod.step, pod.prepared = None, False
            why = f"rank {pod.rank} does not get the snapshot of step {resume.step}"
            self._become(pod, WorkerPhase.READY, view=view.number, lost=why, **self._has(pod))
            pod.worker = pod.worker.model_copy(update={"lost_rank": self._unheard_by(pod)})
            return
        behind = pod.rank != resume.told_by and pod.prepared and pod.step == resume.step - 1
        if resume.checkpoint is None and resume.step > 0 and pod.step != resume.step and not behind:
            raise Violation(f"view {view.number} resumes at {resume.step} from memory, {pod.name} holds {pod.holding}")
        if resume.checkpoint is not None and resume.step not in self.checkpoints:
            raise Violation(f"view {view.number} resumes from a checkpoint of step {resume.step}, which was never taken")
        pod.step, pod.prepared = resume.step, False
        at = Progress(step=pod.step, steps=self.steps, epoch=0.0)
        self._become(
            pod,
            WorkerPhase.RUNNING,
            view=view.number,
            progress=at,
            lost=None,
            holding=None,
            copied=None,
            paused_seconds=None,
            compute_seconds=None,
            snapshots=None,
            lost_rank=None,
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
        return other if there and other is not None and not self._cut_off(pod, other) else None

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
        if pod.worker.view in self._whole:
            return None
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
        self._whole.add(pod.worker.view)
        return None

    def _train(self) -> None:
        there = {pod.worker.view for pod in self.pods.values()}
        for view in [view for number, view in self.views.items() if number in there]:
            members = [self.pods.get(m.pod) for m in view.members]
            group = [p for p in members if p is not None and not p.gone and p.worker.view == view.number]
            if len(group) != len(members) or self._apart(group):
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
        if self._saves is not None and self._saves[:2] == (view.number, step):
            if self.now >= self._saves[2]:
                self._end(view, group, step)
            return
        if step < self.steps:
            step += 1
            self.losses[step] = self.losses.get(step, 0) + 1
            for pod in group:
                pod.step, pod.prepared = step, False
                at = Progress(step=step, steps=self.steps, epoch=step / 10, loss=1.0 / step)
                paused: dict[str, float] = {}
                if pod.trained_in != view.number and pod.updated is not None:
                    paused = {"paused_seconds": max(0.0, self.now - self.tick_seconds - pod.updated)}
                pod.trained_in, pod.updated = view.number, self.now
                times = {"compute_seconds": self._compute_seconds(view, pod), **paused}
                pod.worker = pod.worker.model_copy(update={"progress": at, "heartbeat": self.now, **times})
                self._tell_follower(pod, committed=True)
        self._snap(view, group, step)
        stop = any(pod.draining for pod in group)
        if stop and step < self.steps and self.save_seconds:
            self._saves = (view.number, step, self.now + self.save_seconds)
            return
        self._end(view, group, step)

    def _compute_seconds(self, view: View, pod: Pod) -> float:
        """What a step takes ``pod``: a replica may have more shards than another."""
        topology = view.topology(self.spec.pipeline.stages)
        place = topology.present.index(topology.rank(pod.rank or 0).replica)
        held = share(self.spec.data_parallel.shards, len(topology.present), place)
        return len(held) * self.shard_seconds(pod)

    def _end(self, view: View, group: list[Pod], step: int) -> None:
        """What is done at the boundary of ``step``."""
        stop = any(pod.draining for pod in group)
        if self.hangs and (step == self.steps or stop):
            self._saves = (view.number, step, self.now)  # it is waited for
            return
        if not self.hangs and (step % self.checkpoint_every == 0 or step == self.steps or stop):
            self.save(step, group[0])
        if step == self.steps:
            self.exported = True
            self._become(group[0], WorkerPhase.COMPLETED)
        elif any(self._hands_over(pod, view) or pod.pause >= view.number for pod in group):
            for pod in group:
                if self._hands_over(pod, view):
                    for target in [t for t in (self._target(pod), *self._parts(pod)) if t is not None]:
                        if target.worker.phase is WorkerPhase.FOLLOWING:
                            self._leave(target, "it takes over")
                    pod.follower, pod.recut = None, None
                self._leave(pod, f"the next view has other members, from step {step} on")
        elif stop:
            for pod in group:
                if pod.draining:
                    self._become(pod, WorkerPhase.DRAINED)
                else:
                    self._leave(pod, f"a member left at step {step}")

    def _hands_over(self, pod: Pod, view: View) -> bool:
        target = self._target(pod)
        synced = target is not None and target.worker.phase is WorkerPhase.FOLLOWING and target.step is not None
        members = pod.recut.followers if pod.recut is not None else []
        follows = (synced or pod.follower is None) and len(self._parts(pod)) == len(members)
        return follows and (synced or bool(members)) and pod.handover >= view.number

    def save(self, step: int, writer: Pod | None = None, *, heard: bool = True) -> None:
        """``heard``: its agent hears of it."""
        if writer is not None and writer.worker.view <= self.over:
            return
        if self.checkpoints and step < self.checkpoints[-1]:
            raise Violation(f"a checkpoint of step {step} follows one of step {self.checkpoints[-1]}")
        if step not in self.checkpoints:
            self.checkpoints.append(step)
            self.saved[step] = self.now
            if writer is None and self.committed_view:
                writer = self.pods.get(self.views[self.committed_view].members[0].pod)
            if writer is not None:
                self.written[step] = writer.worker.view
                writer.known |= {step} if heard else set()

    def look_through(self, pod: Pod, number: int = 0, names: Collection[str] = ()) -> None:
        """Its agent is to look through the checkpoints, now that view ``number`` is over, and does as soon as storage answers."""
        pod.look = (number, tuple(names))
        self._look_through(pod)

    def _look_through(self, pod: Pod) -> None:
        if self.hangs or pod.look is None:
            return
        (number, names), pod.look = pod.look, None
        self.over = max(self.over, number)
        known = {checkpoint_name(step, self.written.get(step)) for step in self.checkpoints}
        if unknown := set(names) - known:
            raise Violation(f"{pod.name} is to look for {unknown}, which was never taken")
        pod.known, pod.scanned, pod.looked = set(self.checkpoints), True, max(pod.looked, number)

    def _become(self, pod: Pod, phase: WorkerPhase, **changes: object) -> None:
        self._whole.discard(pod.worker.view)
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

    def break_cable(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Between two nodes alone: packets from ``one`` to ``other`` are lost, and those back unless ``one_way``."""
        self.cables |= {(one, other)} if one_way else {(one, other), (other, one)}

    def cut_power(self, pod: Pod) -> None:
        """Nobody hears of the pod any more; its peers notice by its silence."""
        pod.reachable, pod.dark = False, True
        for other in self.living():
            if other is not pod and other.worker.phase is WorkerPhase.RUNNING and other.worker.view == pod.worker.view:
                self._become(other, WorkerPhase.READY, lost=f"rank {pod.rank} is lost", lost_rank=pod.rank, holding=other.holding)

    def give_notice(self, pod: Pod, seconds: float | None) -> None:
        """The cloud says that it takes the pod's machine away, and does after so long; None: it may."""
        at = None if seconds is None else self.now + seconds
        pod.notice = MachineNotice(reason="the cloud is to stop it", at=at)

    def _go_in_time(self, pod: Pod) -> None:
        at = pod.notice.at if pod.notice is not None else None
        if at is None or pod.gone or self.now < at:
            return
        if not pod.dark:
            self.cut_power(pod)
        pod.gone = self.now >= at + FORGOTTEN_SECONDS

    def let_go(self, source: Pod) -> None:
        """Its follower did not take the gradients in time, and hears nothing: it was stopped, or its network was."""
        target = self._target(source)
        if target is not None:
            source.follower, target.deserted = None, True

    def half_commit(self, told: int = 0, *, dies: bool = False) -> None:
        """The leader commits a step and takes it, and ``told`` others hear of it; the rest have its gradients, and lose their connections.

        ``dies``: so does the leader's process, after that.
        """
        for view in self.views.values():
            group = [p for m in view.members if (p := self.pods.get(m.pod)) is not None and not p.gone]
            there = [p for p in group if p.worker.phase is WorkerPhase.RUNNING and p.worker.view == view.number]
            if self._apart(there):
                continue
            if len(there) != len(view.members) or len({p.step for p in there}) != 1 or (there[0].step or 0) >= self.steps:
                continue
            if view.number < self.committed_view:
                raise Violation(f"view {view.number} commits after view {self.committed_view} did")
            self.committed_view = view.number
            first, *others = there
            order = view.topology(view.cut.stages if view.cut is not None else self.spec.pipeline.stages).audience
            hear = [next(p for p in others if p.rank == rank) for rank in order[:told]]
            step = (first.step or 0) + 1
            self.losses[step] = self.losses.get(step, 0) + 1
            for pod in group:
                pod.prepared = pod is not first
                self._tell_follower(pod, committed=False)
            for pod in [first, *hear]:
                pod.step, pod.prepared = step, False
            for pod in hear:
                at = Progress(step=step, steps=self.steps, epoch=step / 10, loss=1.0 / step)
                pod.worker = pod.worker.model_copy(update={"progress": at, "heartbeat": self.now})
            if dies:
                self.kill_worker(first)
            for pod in others:
                self.break_link(pod)

    @staticmethod
    def answers(pod: Pod) -> bool:
        return not pod.gone and pod.reachable


def _anew(resume: Resume) -> bool:
    """Whether nothing that is in memory counts."""
    return resume.checkpoint is not None or resume.step == 0
