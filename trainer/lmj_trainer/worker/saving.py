"""Which checkpoints a rank begins, and how long it waits for the one that training may not end without."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from lmj_api.manifest import LossScale
from lmj_api.protocol import CheckpointInfo, EventKind
from lmj_trainer.beside import beside
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.checkpoint.scan import Found, survey
from lmj_trainer.errors import UserError
from lmj_trainer.store.registry import checkpoints_of
from lmj_trainer.transport.envelope import Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.background import answered
from lmj_trainer.worker.checkpointer import Checkpointer, Look, ManifestFacts

if TYPE_CHECKING:
    from concurrent.futures import Future

    from lmj_api.spec import LiveMigrationJob
    from lmj_trainer.group.group import Group
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.worker.control import Control
    from lmj_trainer.worker.pace import Pace
    from lmj_trainer.worker.recorder import Recorder

_LONGEST_RETRY_SECONDS = 30.0
_SURVEY_SECONDS = 10.0
"""For which training waits to hear which checkpoints are there."""
_SLOW_SECONDS = 60.0
"""A checkpoint that training waits for is told of when it takes longer."""


class Saving:
    """Begins a rank's checkpoints. Methods are for the compute thread."""

    def __init__(
        self,
        job: LiveMigrationJob,
        owner: Owner,
        state: StageState,
        group: Group,
        checkpointer: Checkpointer,
        control: Control,
        pace: Pace,
        patience: float,
    ) -> None:
        """``owner``: whose checkpoints they are. ``patience``: seconds for which one rank's part is waited for."""
        self._job, self._owner, self._state, self._group = job, owner, state, group
        self._checkpointer, self._control, self._pace = checkpointer, control, pace
        self._patience = patience
        self._root = checkpoints_of(job.spec)
        self._saved_at = time.monotonic()

    def begin(self) -> None:
        """All that is trained is durable."""
        self._saved_at = time.monotonic()

    def look(self, step: int) -> Look:
        """Begin to look for the good ones up to ``step``, while training goes on."""
        digest, training = self._owner.state_digest, self._job.spec.training
        there = beside(lambda: survey(self._root, digest, training, digests=False), "survey")
        return lambda: self._good(there, step)

    def _good(self, survey: Future[list[Found]], step: int) -> tuple[list[CheckpointInfo], list[str]]:
        """Those up to ``step``, and names of them that are not this run's to remove: another job's, or a later run's.

        None of a folder that cannot be read now, or hangs, because the view may go on from memory.
        """
        try:
            # The others wait meanwhile.
            there = answered(survey, min(_SURVEY_SECONDS, self._patience / 3))
        except OSError as error:
            message = f"{self._root} cannot be read: {error}; older checkpoints are not removed"
            self._control.emit(EventKind.WARNING, message)
            return [], []
        found = [(f.info, Owner.of(f.manifest)) for f in there if f.manifest is not None]
        good = [(info, owner) for info, owner in found if info.problem is None and info.step <= step]
        ours = {info.name for info, owner in good if self._owner.same_run(owner) or self._owner.succeeds(owner)}
        return [info for info, _ in good], [info.name for info, _ in good if info.name not in ours]

    def due(self, committed: int) -> bool:
        """Whether a checkpoint is to be begun after ``committed`` steps, were it only for its step and the time. Rank 0 decides."""
        every = self._job.spec.checkpoint
        if committed == self._pace.last or self._checkpointer.busy:
            self._checkpointer.complain()
            # The last step's checkpoint is always taken, and waited for; any other may be late, never in the way.
            return committed == self._pace.last
        by_step = every.every_steps is not None and committed % every.every_steps == 0
        by_time = every.every_seconds is not None and time.monotonic() - self._saved_at >= every.every_seconds
        return by_step or by_time or self._checkpointer.renewal.due

    def start(self, recorder: Recorder | None, attempt: int = 0, *, awaited: bool = False) -> None:
        """Begin the checkpoint of the state's step. ``recorder``: rank 0's; the others as in :meth:`Checkpointer.start`."""
        facts = None
        if recorder is not None:
            step, best, scale = self._state.step, self._state.best, self._state.loss_scale
            accuracy = next((e.accuracy for e in recorder.evaluations if (e.split, e.step) == ("validation", step)), None)
            facts = ManifestFacts(
                job=self._owner.job,
                state_digest=self._owner.state_digest,
                epoch=step / self._pace.per_epoch,
                seconds=self._state.seconds,
                best=best.step == step,
                accuracy=accuracy,
                best_step=best.step,
                best_score=best.score,
                waited=best.waited,
                loss_scale=None if scale is None else LossScale(**scale.kept),
            )
        self._saved_at = time.monotonic()
        self._checkpointer.start(self._group.rank, self._group.topology, self._patience, facts, attempt, awaited=awaited)

    def await_durable(self, recorder: Recorder | None) -> None:
        """Wait until the checkpoint of this step is durable everywhere; one that cannot be written is tried again, by rank 0's word.

        What training has made is in memory alone. A restart would keep it a few times, another pod would not, and both would count as
        failures of what has none: so the worker stays and tries. Raises UserError after ``checkpoint.retrySeconds``.
        """
        step, limit = self._state.step, self._job.spec.checkpoint.retry_seconds
        deadline = time.monotonic() + limit
        for attempt in itertools.count(1):
            self._wait()
            self._group.check()
            problem = self._checkpointer.problem
            if problem == "":
                return
            if problem is None:
                raise ViewBrokenError(f"nobody told of the checkpoint of step {step}")
            if self._group.leads:
                again = time.monotonic() < deadline
                if again:
                    self._pause(min(2.0 ** (attempt - 1), _LONGEST_RETRY_SECONDS, self._patience / 3), problem)
                self._group.tell(Kind.AGAIN, step, attempt, again)
            else:
                again = self._group.take(Kind.AGAIN, step, index=attempt)
            if not again:
                raise UserError(
                    f"the last checkpoint, of step {step}, could not be written within {limit:g} s (checkpoint.retrySeconds): "
                    f"{problem}; make room or fix the storage, and run the job again: it goes on from its newest checkpoint"
                )
            self.start(recorder, attempt, awaited=True)

    def _wait(self) -> None:
        """Wait for the checkpoint under way. Storage that hangs reports no error: rank 0 tells that it takes long. Raises TimeoutError."""
        soon, later = min(_SLOW_SECONDS, self._patience / 3), self._patience
        if not self._checkpointer.settled(soon) and self._group.leads:
            message = f"training waits for the checkpoint of step {self._state.step}, which is not written after {soon:g} s"
            self._control.emit(EventKind.WARNING, f"{message}: is {self._root} reachable?")
        if not self._checkpointer.settled(later - soon) and self._group.leads:
            self._checkpointer.complain()
        self._checkpointer.wait(self._patience)

    def _pause(self, seconds: float, problem: str) -> None:
        """Wait, and show that it is no hang. Raises ViewBrokenError when the view breaks meanwhile."""
        end = time.monotonic() + seconds
        self._control.emit(EventKind.PREPARING, progress=self._pace.at(self._state.step, f"checkpoint: {problem}"))
        while (left := end - time.monotonic()) > 0:
            self._group.check()
            time.sleep(min(left, 0.2))
