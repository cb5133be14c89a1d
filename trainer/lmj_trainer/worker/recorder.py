"""What rank 0 writes into the output folder while training: metrics.jsonl, evaluation.json, TensorBoard."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lmj_api.protocol import Evaluation, Progress
from lmj_trainer.beside import beside
from lmj_trainer.errors import UserError
from lmj_trainer.state.journal import Line
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.background import answered
from lmj_trainer.worker.board import check_tensorboard
from lmj_trainer.worker.collected import merged
from lmj_trainer.worker.record_files import RecordFiles

if TYPE_CHECKING:
    from lmj_api.layout import Layout
    from lmj_trainer.state.journal import Journal
    from lmj_trainer.worker.fence import Claim
    from lmj_trainer.worker.results import Results

log = logging.getLogger(__name__)

_PATIENCE = 2.0
"""Seconds for which training waits for storage, once: while it does not answer, no step waits for it again."""
_LONGEST_RETRY = 10.0
_LAST_PATIENCE = 10.0
"""Seconds for what waits when the worker is to leave."""
_PUSH_PATIENCE = 60.0
"""Seconds for which a checkpoint, beside training, waits for its lines: a view that begins may have thousands of pieces to read."""


class Recorder:
    """Records, in a thread of its own and in the order of steps, what is in the journal. Storage that is full, gone, read-only or hangs does not
    stop training: what could not be written stays in the journal, for the rank 0 that can write it.

    A recorder that another came after, of a newer view or run, records nothing any more. Methods are for the compute thread.
    """

    def __init__(
        self,
        layout: Layout,
        journal: Journal,
        *,
        tensorboard: bool,
        warn: Callable[[str], None] = log.warning,
        results: Results | None = None,
    ) -> None:
        """``results``: where all is to be besides, see :class:`RecordFiles`.

        ``warn`` is told once when something cannot be written, until it can again. Any thread may call it.
        """
        self._layout, self._journal, self._warn, self._board = layout, journal, warn, tensorboard
        self._results = results
        if tensorboard:
            check_tensorboard()
        self._turn = threading.Condition()
        self._files: RecordFiles | None = None
        """What the view that runs writes to; None: no view runs."""
        self._newest: RecordFiles | None = None
        """What the newest view wrote to, over or not: a checkpoint of it may be completed later."""
        self._served: RecordFiles | None = None
        """The newest that the thread has seen."""
        self._asked = self._answered = self._held = 0
        """``_held``: the last question after which the fence was read, and held."""
        self._late = False
        self._problem: OSError | None = None
        """Why it could not record when it last tried."""
        self._again, self._pause = 0.0, 0.0
        self._over: Exception | None = None
        self._thread: threading.Thread | None = None

    def begin(self, claim: Claim, resume: int) -> None:
        """A view begins. Records of steps up to ``resume`` stay; later ones are of work that is done again, and go."""
        self.claim = claim
        with self._turn:
            self._files = RecordFiles(self._layout, claim, resume, self._journal, self._board, self._warn, self._results)
            self._newest = self._files
            self._over, self._again = None, 0.0
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
                self._thread.start()
        self._ask()

    def check(self) -> None:
        """Raise ViewBrokenError when another view records here: this one is over, whatever this process was told. Raise UserError when a later
        run does. While storage is in trouble nobody looks, and training goes on.
        """
        self._ask()
        if self._over is not None:
            raise self._over

    def hold(self) -> None:
        """As :meth:`check`, but it has looked since it was asked, whatever was tried before. Raises OSError when that was not possible."""
        with self._turn:
            self._again = 0.0
            self._asked += 1
            asked = self._asked
            self._turn.notify_all()
            answered = self._turn.wait_for(lambda: self._answered >= asked, _LAST_PATIENCE)
            held, problem = self._held >= asked, self._problem if answered else "it does not answer"
        if self._over is not None:
            raise self._over
        if not held:
            raise OSError(f"whether another writes into {self._layout.output} cannot be told: {problem}")

    def push(self) -> None:
        """Have all that is recorded so far outlive this machine. Any thread may. Raises OSError."""
        if self._results is None:
            return
        with self._turn:
            if (files := self._files) is not None:
                # What is in the journal alone would not be pushed.
                self._again = 0.0
                self._asked += 1
                asked = self._asked
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._answered >= asked or self._files is not files, _PUSH_PATIENCE)
        self._elsewhere(RecordFiles.push)

    def leave(self) -> None:
        """Another machine goes on, whose worker knows the lines that wait, and no evaluation: those are pushed. Training waits for it, once."""
        if not self._journal.evaluations():
            return
        try:
            answered(beside(self.push, "push"), _LAST_PATIENCE)
        except OSError as error:
            self._warn(f"evaluations may stay behind on this machine, in {self._layout.output}: {error}")

    def publish(self) -> None:
        """As :meth:`push`, of all results, when training is over."""
        self._elsewhere(RecordFiles.publish)

    def _elsewhere(self, work: Callable[[RecordFiles], None]) -> None:
        if (files := self._newest) is None:
            return
        try:
            work(files)
        except (ViewBrokenError, UserError) as error:
            self._give_up(files, error)
            raise OSError(str(error)) from error

    def lacks(self, step: int) -> bool:
        """Whether a line of a step up to ``step`` may be neither on storage nor in the journal."""
        newest = self._files.newest if self._files is not None else None
        return newest is None or self._journal.lacks(newest + 1, step)

    def step(self, progress: Progress, now: float) -> None:
        """Record a committed step."""
        self._journal.add(Line(progress.step, progress.to_json(), now))
        self._ask()

    def evaluation(self, result: Evaluation) -> None:
        """Record an evaluation; one of the same split and step is replaced. Raises as :meth:`check`."""
        self.check()
        self._journal.evaluated(result)
        self._ask()

    @property
    def evaluations(self) -> list[Evaluation]:
        """All that are known, in the order in which they were made."""
        filed = self._files.evaluations if self._files is not None else []
        return merged(filed, self._journal.evaluations())

    def end(self) -> None:
        """The view is over."""
        with self._turn:
            self._again = 0.0
            waits = self._journal.waits
        self._ask(_LAST_PATIENCE if waits and not self._late else _PATIENCE)
        with self._turn:
            self._files = None
            self._turn.notify_all()

    def _ask(self, patience: float = _PATIENCE) -> None:
        """Have the thread look and write, and wait until it has. While storage does not answer nobody waits."""
        with self._turn:
            self._asked += 1
            asked = self._asked
            self._turn.notify_all()
            if self._late or self._turn.wait_for(lambda: self._answered >= asked, patience):
                return
            self._late = True
        self._warn(f"{self._layout.output} does not answer; training goes on, and metrics are written later")

    def _run(self) -> None:
        while True:
            with self._turn:
                due = self._turn.wait_for(self._due, self._wait())
                files, asked, served = self._files, self._asked, self._served
                self._served = files
                if files is None:
                    self._thread = None
            if served is not files and served is not None:
                served.close()
            if files is None:
                return
            if due or self._problem is not None:
                self._work(files, asked)
            with self._turn:
                self._answered, self._late = asked, False
                self._turn.notify_all()

    def _due(self) -> bool:
        return self._files is not self._served or self._asked != self._answered

    def _wait(self) -> float | None:
        return max(0.0, self._again - time.monotonic()) if self._problem is not None and self._over is None else None

    def _work(self, files: RecordFiles, asked: int) -> None:
        if self._over is not None or time.monotonic() < self._again:
            return
        try:
            files.hold()
            self._held = asked
            files.write()
        except OSError as error:
            files.close()
            self._pause = min(2 * self._pause or 0.5, _LONGEST_RETRY)
            self._again = time.monotonic() + self._pause
            if self._problem is None:
                text = (
                    f"metrics cannot be written to {self._layout.output}: {error}; training goes on, and they are written later"
                )
                self._warn(text)
            self._problem = error
        except (ViewBrokenError, UserError) as error:
            self._give_up(files, error)
        except Exception as error:
            # The thread's end would be a recorder that never answers: the next call raises it.
            log.exception("cannot record")
            self._give_up(files, error)
        else:
            self._problem, self._pause = None, 0.0

    def _give_up(self, files: RecordFiles, error: Exception) -> None:
        with self._turn:
            if files is self._files:
                self._over = error
