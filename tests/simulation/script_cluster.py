"""A cluster whose workers run a script: they hold nothing, and the script saves by itself."""

from typing import Any

from lmj_api.protocol import STARTING_SCRIPT, Progress, WorkerPhase
from lmj_api.spec import JobSpec
from lmj_api.view import View

from .cluster import Cluster
from .pod import Pod, Violation


def script_spec(replicas: int, **parts: Any) -> JobSpec:
    """A job of ``replicas`` pods. ``parts``: of the document."""
    parallel = {"replicas": replicas, **parts.pop("dataParallel", {})}
    command = {"args": ["train.py"]}
    document = {"strategy": "Command", "command": command, "dataParallel": parallel, "output": {"path": "out"}, **parts}
    return JobSpec.model_validate(document)


class ScriptCluster(Cluster):
    """The script saves each fifth step, and once more when it is told to end."""

    def __init__(self, spec: JobSpec, steps: int = 30, checkpoint_every: int = 5, nodes: tuple[str, ...] = ("node",)) -> None:
        super().__init__(spec, steps, checkpoint_every, nodes)
        self.script_saved = 0
        """The step that the script goes on from."""
        self.silent = False
        """It reports no steps."""
        self.given = False
        """It is given its checkpoint."""
        self.begun: dict[int, int] = {}
        """Of each view whose script runs: the step that it is at."""

    def scale(self, replicas: int) -> None:
        self.spec = self.spec.scaled(replicas)

    def _has(self, pod: Pod) -> dict[str, object]:
        return {"holding": None, "snapshots": None}

    def _join(self, pod: Pod, view: View) -> None:
        if view.resume.step != 0 or view.resume.checkpoint is not None or view.resume.snapshot:
            raise Violation(f"view {view.number} of a script resumes from {view.resume}")
        joined = self._joined.setdefault((view.number, pod.rank), [])
        if any(self.pods[name] is not pod and self._runs_in(self.pods[name], view) for name in joined if name in self.pods):
            raise Violation(f"view {view.number} has two living members of rank {pod.rank}")
        joined.append(pod.name)
        at = self.script_saved if self.given else 0
        begins = Progress(step=at, steps=self.steps, epoch=0.0, activity=STARTING_SCRIPT)
        self._become(pod, WorkerPhase.RUNNING, view=view.number, progress=begins, lost=None, lost_rank=None)

    @staticmethod
    def _runs_in(pod: Pod, view: View) -> bool:
        return pod.worker.phase is WorkerPhase.RUNNING and not pod.gone and pod.worker.view == view.number

    def _commit(self, view: View, group: list[Pod]) -> None:
        if view.number < self.committed_view:
            raise Violation(f"the script of view {view.number} runs after that of view {self.committed_view} did")
        self.committed_view = view.number
        if any(pod.draining or max(pod.pause, pod.handover) >= view.number for pod in group):
            self.script_saved = self.begun.get(view.number, self.script_saved)
            for pod in group:
                if pod.draining:
                    self._become(pod, WorkerPhase.DRAINED)
                else:
                    self._leave(pod, "it was left for another view")
            return
        step = self.begun.get(view.number, self.script_saved) + 1
        self.begun[view.number] = step
        self.losses[step] = self.losses.get(step, 0) + 1
        if step % self.checkpoint_every == 0 or step == self.steps:
            self.script_saved = step
        for pod in group:
            told = (
                Progress(step=step, steps=self.steps, epoch=0.0) if pod is group[0] and not self.silent else pod.worker.progress
            )
            pod.worker = pod.worker.model_copy(update={"progress": told, "heartbeat": self.now})
        if step >= self.steps:
            self.exported = True
            for pod in group:
                self._become(pod, WorkerPhase.COMPLETED)

    def half_commit(self, told: int = 0, *, dies: bool = False) -> None:
        """There is no commit: its connections break."""
        for pod in self.living():
            self.break_link(pod)

    def save(self, step: int, writer: Pod | None = None, *, heard: bool = True) -> None:
        raise Violation("a script's workers save no checkpoints of ours")
