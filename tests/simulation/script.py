"""A cluster whose workers hold nothing: launchers of a script, which saves and reports as it likes."""

from lmj_api.protocol import STARTING_SCRIPT, Progress, WorkerPhase
from lmj_api.spec import JobSpec
from lmj_api.view import View
from lmj_operator.plan import Action, Plan, PodObserved

from .cluster import Cluster
from .pod import ALIVE, Pod, Violation

RUNNING, READY = WorkerPhase.RUNNING, WorkerPhase.READY


def script_spec(replicas: int = 3, *, least: int = 1, most: int = 4, save: float = 3.0, **parts: object) -> JobSpec:
    return JobSpec.model_validate(
        {
            "strategy": "Command",
            "command": {"args": ["train.py"], "saveSeconds": save},
            "dataParallel": {"replicas": replicas, "minReplicas": least, "maxReplicas": most},
            "output": {"path": "out"},
            "recovery": {"maxRestarts": 100_000, "backoffSeconds": 0.5, "maxBackoffSeconds": 4},
            **parts,
        }
    )


class Script(Cluster):
    """Each tick of a view in which all are is a step. A checkpoint is saved now and then, and when all are told to stop."""

    def __init__(self, spec: JobSpec, steps: int = 40, save_every: int = 5, nodes: tuple[str, ...] = ("a", "b", "c")) -> None:
        super().__init__(spec, steps, nodes=nodes)
        self.save_every = save_every
        self.durable = 0
        """The newest step that the script has saved."""
        self.at: dict[int, int] = {}
        """Of each view, the step that its script is at."""
        self.reports = True
        self.slow_stop = 1.0
        """Seconds that rank 0's processes take to save; each next rank takes a second more."""
        self.boot_seconds = 0.0
        """For which the agent of a pod that is made now does not answer yet."""
        self._boots: dict[str, float] = {}
        self._until: dict[str, float] = {}
        """When the processes of a pod that are told to stop will have ended."""
        self._stale: set[int] = set()
        """Views that were made of what was not so any more."""
        self.begun: list[int] = []
        """Views in which the script has begun, in order."""
        self.killed_while_saving = 0

    def scale(self, replicas: int) -> None:
        parts = self.spec.data_parallel
        self.spec = self.spec.model_copy(update={"data_parallel": parts.model_copy(update={"replicas": replicas})})

    def apply(self, action: Action) -> None:
        before = set(self.pods)
        super().apply(action)
        for name in set(self.pods) - before:
            if self.boot_seconds and self.pods[name].reachable:
                self.pods[name].reachable = False
                self._boots[name] = self.now + self.boot_seconds

    def tick(self, seconds: float = 1.0) -> None:
        for name, until in list(self._boots.items()):
            if name in self.pods and self.now + seconds < until:
                continue
            del self._boots[name]
            if name in self.pods and not self.pods[name].dark:
                self.pods[name].reachable = True
        super().tick(seconds)

    def reconcile(
        self, pods: tuple[PodObserved, ...] | None = None, *, first: int | None = None, dropped: int | None = None
    ) -> Plan:
        made = super().reconcile(pods, first=first, dropped=dropped)
        if pods is not None and made.status.view is not None:
            self._stale.add(made.status.view.number)
        return made

    def active(self) -> list[Pod]:
        """Pods in which the script runs."""
        return [p for p in self.living() if p.worker.phase is RUNNING and not p.dark]

    def _join(self, pod: Pod, view: View) -> None:
        if view.resume.step or view.resume.checkpoint is not None:
            raise Violation(f"view {view.number} of a script goes on from {view.resume}")
        for other in self.active():
            # One that nobody can reach notices by itself that its peers are gone; one that is told of this view leaves its own for it.
            told = other.view is not None and other.view.number >= view.number
            if (
                other.worker.view != view.number
                and self.answers(other)
                and not (other.forced or told or view.number in self._stale)
            ):
                raise Violation(f"the script begins in view {view.number}, and runs in view {other.worker.view} in {other.name}")
        if view.number not in self.at:
            self.at[view.number] = self.durable
            self.begun.append(view.number)
        begins = Progress(step=0, steps=1, epoch=0.0, activity=STARTING_SCRIPT)
        self._become(pod, RUNNING, view=view.number, lost=None, lost_rank=None, progress=begins)

    def _live(self, pod: Pod) -> None:
        if pod.worker.phase is not RUNNING:
            self._until.pop(pod.name, None)
            super()._live(pod)
            return
        view = self.views[pod.worker.view]
        if pod.view is not None and pod.view.number > view.number:
            self._left(pod, f"view {pod.view.number} follows", None)
            return
        group = [self.pods[m.pod] for m in view.members if m.pod in self.pods]
        if pod.name in self._until:
            if self.now >= self._until[pod.name]:
                self._until.pop(pod.name)
                if pod.draining:
                    self._become(pod, WorkerPhase.DRAINED)
                else:
                    self._left(pod, "to let another begin", None)
            return
        asked = [p for p in group if not p.gone and not p.dark and p.worker.view == view.number]
        if any((p.draining or max(p.pause, p.handover) >= view.number) and p.worker.phase in ALIVE for p in asked):
            for number, other in enumerate(asked):
                if other.worker.phase is RUNNING and other.name not in self._until:
                    self._until[other.name] = self.now + self.slow_stop + number
            if self.at[view.number] > self.durable:
                self.durable = self.at[view.number]
            return
        lost = self._lost(pod, view)
        if lost is not None:
            self._left(pod, f"rank {lost} is lost", lost)

    def _lost(self, pod: Pod, view: View) -> int | None:
        for member in view.members:
            peer = self.pods.get(member.pod)
            if peer is pod:
                continue
            if peer is None or peer.gone or peer.dark or peer.worker.incarnation != member.incarnation:
                return member.rank
            if peer.worker.phase not in (*ALIVE, WorkerPhase.COMPLETED) or (
                peer.worker.phase is READY and peer.worker.view >= view.number
            ):
                return member.rank
            if self._cut_off(pod, peer):
                return member.rank
        return None

    def _left(self, pod: Pod, why: str, rank: int | None) -> None:
        self._until.pop(pod.name, None)
        self._become(pod, READY, lost=why, lost_rank=rank)

    def _leave(self, pod: Pod, why: str, rank: int | None = None) -> None:
        """It is told to, by the operator, or its link broke: its processes are killed."""
        if pod.name in self._until:
            self.killed_while_saving += 1
        self._left(pod, why, rank)

    def _unheard_by(self, pod: Pod) -> int | None:
        return None

    def cut_power(self, pod: Pod) -> None:
        pod.reachable, pod.dark = False, True

    def _train(self) -> None:
        for number in {p.worker.view for p in self.active()}:
            view = self.views[number]
            group = [p for m in view.members if (p := self.pods.get(m.pod)) is not None and not p.gone and not p.dark]
            if len(group) != len(view.members) or any(p.worker.view != number or p.worker.phase is not RUNNING for p in group):
                continue
            if any(p.name in self._until for p in group) or any(p.worker.since >= self.now for p in group):
                continue
            if number < self.committed_view:
                raise Violation(f"view {number} computes after view {self.committed_view} did")
            self.committed_view = number
            step = self.at[number] = self.at[number] + 1
            self.losses[step] = self.losses.get(step, 0) + 1
            if step % self.save_every == 0:
                self.durable = step
            if self.reports:
                at = Progress(step=step, steps=self.steps, epoch=0.0, loss=1.0)
                group[0].worker = group[0].worker.model_copy(update={"progress": at, "heartbeat": self.now})
            if step >= self.steps:
                self.durable, self.exported = self.steps, True
                for pod in group:
                    self._become(pod, WorkerPhase.COMPLETED)

    def half_commit(self, told: int = 0, *, dies: bool = False) -> None:
        """There is no commit: its connections break."""
        for pod in self.active():
            self.break_link(pod)

    def save(self, step: int, writer: Pod | None = None, *, heard: bool = True) -> None:
        raise Violation("a script's workers save no checkpoints of ours")
