"""The end of training: which weights become the model, their test, and the model's folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmj_api.layout import Layout
from lmj_api.names import parse_checkpoint_name
from lmj_api.protocol import EventKind
from lmj_api.spec import Weights
from lmj_trainer.checkpoint.tensors import load_weights
from lmj_trainer.transport.envelope import Kind
from lmj_trainer.worker.export import export

if TYPE_CHECKING:
    from lmj_api.spec import LiveMigrationJob
    from lmj_trainer.data.prepared import Prepared
    from lmj_trainer.model.stage import Stage
    from lmj_trainer.pipeline.pipeline import Pipeline
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.transport.port import Transport
    from lmj_trainer.worker.checkpointer import Checkpointer
    from lmj_trainer.worker.control import Control
    from lmj_trainer.worker.pace import Pace
    from lmj_trainer.worker.recorder import Recorder

_CHOICE = 1  # index of the boundary message that names the final weights
_FLUSH_SECONDS = 10.0


@dataclass(frozen=True)
class Ending:
    """What a rank does when all steps are committed and durable."""

    job: LiveMigrationJob
    prepared: Prepared
    stage: Stage
    state: StageState
    pipeline: Pipeline
    checkpointer: Checkpointer
    transport: Transport
    control: Control
    pace: Pace

    def run(self, test: Callable[[Recorder | None, int], None], recorder: Recorder | None) -> None:
        """Choose the weights, have those of their step tested, save the model; others leave when it is saved. ``recorder``: rank 0's."""
        layout = Layout.of(self.job.spec)
        step = self.state.step
        chosen, name = self._choose(step)
        folder = layout.checkpoints / name
        if chosen != step:
            load_weights(folder, self.state)
        if "test" in self.prepared.splits:
            test(recorder, chosen)
        if recorder is None:
            self.pipeline.take(Kind.FINISHED, step, 0)
            self.transport.flush(_FLUSH_SECONDS)
            self.control.emit(EventKind.COMPLETED, "rank 0 saved the model")
            return
        self.control.emit(EventKind.PREPARING, progress=self.pace.at(step, "export"))
        results = [e for e in recorder.evaluations if e.step == chosen]
        job, spec = self.job.metadata.name, self.job.spec
        export(layout, folder, self.stage.config, self.prepared.tokenizer, job, spec, results)
        # Told to the agent before the others leave: from here on the job has succeeded, whoever dies.
        self.control.emit(EventKind.COMPLETED, f"model of step {chosen} saved in {layout.model}")
        for rank in range(1, self.pipeline.stages):
            self.pipeline.send(rank, Kind.FINISHED, step)
        self.transport.flush(_FLUSH_SECONDS)

    def _choose(self, step: int) -> tuple[int, str]:
        """The step whose weights become the model, and the folder of its checkpoint: rank 0's word."""
        if self.pipeline.rank != 0:
            word = self.pipeline.take(Kind.BOUNDARY, step, 0, _CHOICE)
            return int(word["step"]), Path(word["folder"]).name
        chosen, best = step, self.state.best.step
        if self.job.spec.output.weights is Weights.BEST and best is not None:
            # A best checkpoint that could not be written leaves the best of those that could.
            known = self.checkpointer.known
            fallback = max((c.step for c in known if c.best), default=step)
            chosen = best if any(c.step == best for c in known) else fallback
            if chosen != best:
                message = f"the best weights, of step {best}, have no checkpoint: those of step {chosen} are taken"
                self.control.emit(EventKind.WARNING, message)
        # The last step's is durable, or training would not have ended.
        folder = max((c.name for c in self.checkpointer.known if c.step == chosen), key=parse_checkpoint_name)
        for rank in range(1, self.pipeline.stages):
            self.pipeline.send(rank, Kind.BOUNDARY, step, _CHOICE, {"step": chosen, "folder": folder})
        return chosen, folder
