"""How a rank gets to the step that a view goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmj_api.protocol import EventKind
from lmj_api.spec import Precision
from lmj_trainer.checkpoint.tensors import load_state, read_manifest
from lmj_trainer.errors import OutageError
from lmj_trainer.fetched import local
from lmj_trainer.hub import patiently
from lmj_trainer.pretrained import kept
from lmj_trainer.state.loss_scale import LossScale
from lmj_trainer.state.stage_state import Best
from lmj_trainer.state.weights import initialise
from lmj_trainer.store.port import RenewableError
from lmj_trainer.store.registry import checkpoints_of
from lmj_trainer.worker.claim import require_start

if TYPE_CHECKING:
    from lmj_api.manifest import Manifest
    from lmj_api.spec import JobSpec
    from lmj_api.view import Resume, View
    from lmj_trainer.follow.source import Source
    from lmj_trainer.model.part import Part
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.worker.checkpointer import Checkpointer
    from lmj_trainer.worker.control import Control
    from lmj_trainer.worker.pace import Pace
    from lmj_trainer.worker.saving import Saving
    from lmj_trainer.worker.snapshots import MemorySnapshots

_RENEWAL_SECONDS = 180.0
"""For which a rank waits for its pod to see a Secret that was renewed: the kubelet takes a minute or two."""


@dataclass(frozen=True)
class Restoring:
    """Brings a rank's state to a view's resume point."""

    spec: JobSpec
    rank: int
    stage: Part
    state: StageState
    source: Source
    snapshots: MemorySnapshots
    checkpointer: Checkpointer
    saving: Saving
    control: Control
    pace: Pace

    def restore(self, view: View) -> None:
        """Bring the state to the view's resume point, or one step before it with all gradients. A state that is there already stays,
        if the view believes it.
        """
        state, resume = self.state, view.resume
        require_start(self.spec.training, resume.step, self.pace.steps)
        self.checkpointer.before_apply()
        state.journal.forget(resume.step)
        # A state that does not come of what is in memory is followed by none of that.
        anew = resume.checkpoint is not None or resume.step == 0
        newest = resume.step if resume.common_snapshot is None else resume.common_snapshot
        if anew:
            self.saving.begin()
        self.snapshots.forget(-1 if anew else newest)
        if resume.snapshot:
            self.source.restart()
            self.snapshots.restore(resume)
        elif resume.checkpoint is not None:
            self._from_checkpoint(resume, resume.checkpoint)
        else:
            self._from_memory(view)

    def _from_checkpoint(self, resume: Resume, name: str) -> None:
        state, folder = self.state, checkpoints_of(self.spec) / Path(name).name

        def load() -> Manifest:
            try:
                manifest = read_manifest(folder)
                if state.step != manifest.step or not resume.believed:
                    self.source.restart()
                    load_state(folder, state)
            except RenewableError as error:
                # Whoever looked for it has other keys: pods do not see at the same time that a Secret was renewed.
                raise OutageError(str(error)) from error
            return manifest

        def say(line: str) -> None:
            self.control.emit(EventKind.PREPARING, progress=self.pace.at(resume.step, f"restore: {line}"))

        # The others wait meanwhile.
        manifest = patiently(load, min(_RENEWAL_SECONDS, self.spec.recovery.hang_timeout_seconds / 2), say)
        # The checkpoint of an evaluated step is written after the evaluation.
        state.best = Best(manifest.best_step, manifest.best_score, manifest.waited, manifest.step)
        state.seconds, state.evaluated = manifest.seconds, manifest.step
        scale = manifest.loss_scale
        state.loss_scale = self._loss_scale(manifest.step, {} if scale is None else scale.model_dump())

    def _loss_scale(self, step: int, known: dict[str, int]) -> LossScale | None:
        """That of Float16 training at ``step``, of which a checkpoint has ``known``."""
        return LossScale(step, **known) if self.spec.training.precision is Precision.FLOAT16 else None

    def _from_memory(self, view: View) -> None:
        """Or from the beginning, where there is nothing yet."""
        state, resume = self.state, view.resume
        held = state.holding
        there = held is not None and held.step == resume.step and resume.believed
        behind = held is not None and held.prepared and held.step + 1 == resume.step and self.rank != resume.told_by
        if resume.step == 0 and not there:
            self.source.restart()
            state.best, state.seconds, state.evaluated = Best(), 0.0, -1
            state.loss_scale = self._loss_scale(0, {})
            fresh = initialise(self.stage, state, kept(local(self.spec)).model)
            if fresh:
                message = f"starts at random: {', '.join(fresh)}"
                self.control.emit(EventKind.PREPARING, message, progress=self.pace.at(0))
        elif not there and not behind:
            raise RuntimeError(f"view {view.number} goes on from step {resume.step} in memory, but here is {held or 'nothing'}")
