"""The end of training: which weights become the model, their test, and the model's folder."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmj_api.layout import Layout
from lmj_api.names import parse_checkpoint_name
from lmj_api.protocol import EventKind
from lmj_api.spec import Weights
from lmj_trainer.beside import beside
from lmj_trainer.checkpoint.tensors import load_weights
from lmj_trainer.dataset.stored import PreparedRows
from lmj_trainer.durable import sync_file
from lmj_trainer.errors import UserError
from lmj_trainer.group.farewell import tell_again, tell_finished, wait_finished
from lmj_trainer.store.registry import checkpoints_of
from lmj_trainer.transport.envelope import Kind
from lmj_trainer.worker.export import export
from lmj_trainer.worker.export_own import export_own

if TYPE_CHECKING:
    from lmj_api.protocol import Evaluation
    from lmj_api.spec import LiveMigrationJob
    from lmj_trainer.dataset.stored import Prepared
    from lmj_trainer.group.group import Group
    from lmj_trainer.model.part import Part
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.store.port import Ref
    from lmj_trainer.worker.checkpointer import Checkpointer
    from lmj_trainer.worker.control import Control
    from lmj_trainer.worker.pace import Pace
    from lmj_trainer.worker.recorder import Recorder

_CHOICE = 1  # index of the boundary message that names the final weights
_LONGEST_RETRY_SECONDS = 30.0


@dataclass(frozen=True)
class Ending:
    """What a rank does when all steps are committed and durable."""

    job: LiveMigrationJob
    prepared: Prepared
    stage: Part
    state: StageState
    group: Group
    checkpointer: Checkpointer
    control: Control
    pace: Pace

    def run(self, test: Callable[[Recorder | None, int], None], recorder: Recorder | None) -> None:
        """Choose the weights, have those of their step tested, save the model; others leave when it is saved. ``recorder``: rank 0's."""
        layout = Layout.of(self.job.spec)
        step = self.state.step
        chosen, name = self._choose(step)
        folder = checkpoints_of(self.job.spec) / name
        if chosen != step:
            load_weights(folder, self.state)
        if "test" in self.prepared.splits:
            test(recorder, chosen)
        if recorder is None:
            wait_finished(self.group, step)
            self.control.emit(EventKind.COMPLETED, "rank 0 saved the model")
            return
        self.control.emit(EventKind.PREPARING, progress=self.pace.at(step, "export"))
        results = [e for e in recorder.evaluations if e.step == chosen]
        attempt = self._save(layout, folder, step, results, recorder)
        # Told to the agent before the others leave: from here on the job has succeeded, whatever dies.
        self.control.emit(EventKind.COMPLETED, f"model of step {chosen} saved in {_place(layout)}")
        tell_finished(self.group, step, attempt)

    def _save(self, layout: Layout, folder: Ref, step: int, results: list[Evaluation], recorder: Recorder) -> int:
        """Write the model; while that cannot be written it is tried again, as the last checkpoint is. Returns how often the others were told to
        wait on.

        Raises UserError after ``checkpoint.retrySeconds``.
        """
        job, spec = self.job.metadata.name, self.job.spec
        limit = spec.checkpoint.retry_seconds
        deadline, told = time.monotonic() + limit, itertools.count()
        for attempt in itertools.count():
            try:
                with contextlib.suppress(FileNotFoundError):  # metrics that could not be written do not fail the job
                    # The others, who keep the lines until they are durable, are about to leave.
                    sync_file(layout.metrics)
                by, allowed = recorder.claim.mark, recorder.hold
                if isinstance(self.prepared, PreparedRows):
                    export_own(layout, folder, job, spec, results, by, allowed)
                else:
                    export(layout, folder, self.stage.config, self.prepared, job, spec, results, by, allowed)
                self._publish(step, told, recorder)
            except OSError as error:
                problem = f"{_place(layout)} cannot be written: {error}"
                if time.monotonic() >= deadline:
                    raise UserError(
                        f"{problem}, nor could it within {limit:g} s (checkpoint.retrySeconds); make room or fix the storage, and run the"
                        " job again: it goes on from its newest checkpoint"
                    ) from error
            else:
                return next(told)
            if attempt == 0:
                self.control.emit(EventKind.WARNING, f"{problem}; it is tried again")
            tell_again(self.group, step, next(told))
            self._pause(step, min(2.0**attempt, _LONGEST_RETRY_SECONDS, spec.recovery.hang_timeout_seconds / 3), problem)
        raise AssertionError  # it counts for ever

    def _publish(self, step: int, told: Iterator[int], recorder: Recorder) -> None:
        """Have object storage have all results, where they lie there. A large model takes longer than others wait for one message: they are told
        to wait on. Raises OSError, and ViewBrokenError when the view breaks meanwhile.
        """
        done = beside(recorder.publish, "publish")
        while not wait([done], self.job.spec.recovery.hang_timeout_seconds / 3).done:
            self.group.check()
            tell_again(self.group, step, next(told))
            self.control.emit(EventKind.PREPARING, progress=self.pace.at(step, "publish the model"))
        done.result()

    def _pause(self, step: int, seconds: float, problem: str) -> None:
        """Wait, and show that it is no hang. Raises ViewBrokenError when the view breaks meanwhile."""
        end = time.monotonic() + seconds
        self.control.emit(EventKind.PREPARING, progress=self.pace.at(step, f"export: {problem}"))
        while (left := end - time.monotonic()) > 0:
            self.group.check()
            time.sleep(min(left, 0.2))

    def _choose(self, step: int) -> tuple[int, str]:
        """The step whose weights become the model, and the folder of its checkpoint: rank 0's word."""
        if not self.group.leads:
            word = self.group.take(Kind.BOUNDARY, step, index=_CHOICE)
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
        self.group.tell(Kind.BOUNDARY, step, _CHOICE, {"step": chosen, "folder": folder})
        return chosen, folder


def _place(layout: Layout) -> str:
    """Where the model is, for people."""
    return str(layout.model) if layout.results is None else f"{layout.results}/{layout.model.name}"
