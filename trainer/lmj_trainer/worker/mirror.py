"""What one view's rank 0 records on its machine, in object storage too: another machine goes on from there.

The other ranks, and the journal, keep what is not there yet. Lines are taken from the file of this machine, which outlives the process.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from lmj_trainer.durable import write_atomically
from lmj_trainer.errors import UserError
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.collected import as_json, by_step, collect, merged, read
from lmj_trainer.worker.fence import Claim, Fence
from lmj_trainer.worker.metrics_file import kept_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmj_api.protocol import Evaluation
    from lmj_trainer.state.journal import Journal
    from lmj_trainer.worker.results import Results

_MOST_PIECES = 512
"""Of lines: then all are written as one again, or who goes on from them would read thousands."""


class Mirror:
    """Of the files of ``results`` on this machine. Any thread may use it, one at a time writes there."""

    def __init__(self, results: Results, claim: Claim, journal: Journal, turn: int) -> None:
        self._results, self._journal, self._turn = results, journal, turn
        self._fence = Fence(results.claims, claim)
        self._lock = threading.Lock()
        self._offset = self._number = 0
        self.sent = 0
        """The last step whose line is there."""
        self._kept = 0
        """Pieces of lines that are there, about."""
        self._evaluations: Sequence[Evaluation] = ()
        self._waiting: Sequence[Evaluation] = ()
        self._over: ViewBrokenError | UserError | None = None
        self._ready = False
        """Whether the files of this machine are those of this view."""
        self._noted: int | None = None

    def check(self) -> None:
        """Raise ViewBrokenError or UserError when another has come after this one, as far as it has been seen."""
        if self._over is not None:
            raise self._over

    def pull(self, resume: int) -> None:
        """Have the files of this machine say what is there, of steps up to ``resume``. What they say beyond that stays, when nobody wrote since
        who wrote them. Raises OSError, and as :meth:`check`.
        """
        layout = self._results.layout
        with self._lock:
            claim = self._hold()
            there, evaluations, pieces = collect(self._results, resume)
            self._kept += pieces
            self._results.begin(claim, resume)
            self._take_over(claim)
        here = by_step(layout.metrics.read_bytes(), resume) if layout.metrics.exists() else {}
        if lost := there.keys() - here.keys():
            here |= {step: there[step] for step in lost}
            write_atomically(layout.metrics, b"".join(here[step] for step in sorted(here)))
        if evaluations:
            here_too = read(layout.evaluation.read_bytes()) if layout.evaluation.exists() else []
            write_atomically(layout.evaluation, as_json(merged(evaluations, here_too)))
        self.sent = max(there, default=0)

    def _take_over(self, claim: int) -> None:
        """Of what this machine has only that counts which the writer before this one wrote: another's was done again, or is of another job."""
        layout = self._results.layout
        layout.output.mkdir(parents=True, exist_ok=True)
        try:
            said = layout.mirrored.read_text(errors="replace")
        except FileNotFoundError:
            said = ""
        if said not in (self._note(claim - 1), self._note(claim)):
            layout.metrics.unlink(missing_ok=True)
            layout.evaluation.unlink(missing_ok=True)
        self._write_note(claim)

    def _note(self, claim: int) -> str:
        return f"{claim} {self._results.root}\n"

    def _write_note(self, claim: int) -> None:
        if claim != self._noted:
            write_atomically(self._results.layout.mirrored, self._note(claim).encode())
            self._noted = claim

    def rewind(self) -> None:
        """The file of the metrics may have been written anew; it is this view's now."""
        with self._lock:
            self._offset, self._ready = 0, True

    def evaluated(self, all_: Sequence[Evaluation], waiting: Sequence[Evaluation]) -> None:
        """``all_`` evaluations that are known, of which those ``waiting`` are not there."""
        self._evaluations, self._waiting = all_, waiting

    def push(self) -> None:
        """Have what is in the files of this machine be there. Raises OSError, and as :meth:`check`."""
        self.check()
        if not self._ready:
            raise OSError(f"what is recorded in {self._results.root} has not been read yet")
        with self._lock:
            claim = self._hold()
            self._write_note(claim)
            self._push_lines(claim)
            if waiting := self._waiting:
                self._results.add_evaluations(claim, as_json(self._evaluations))
                if self._waiting is waiting:
                    self._waiting = ()
                self._journal.filed(waiting, self._turn)

    def publish(self) -> None:
        """Have all results be there as users look for them, when training is over. Raises as :meth:`push`."""
        self.push()
        with self._lock:
            self._results.publish(self._allowed)
            self._results.clear(self._hold())

    def _push_lines(self, claim: int) -> None:
        path = self._results.layout.metrics
        if not path.exists():
            return
        whole = self._kept >= _MOST_PIECES
        offset = 0 if whole else self._offset
        with path.open("rb") as file:
            file.seek(offset)
            # A line that is being written ends without a line feed, and is none yet.
            new = list(kept_lines(file, 1 << 62))
        lines = [line for step, _, line in new if whole or step > self.sent]
        if lines:
            number, self._number = self._number, self._number + 1
            self._results.add_lines(claim, number, b"".join(lines))
            self._kept = 1 if whole else self._kept + 1
            self.sent = new[-1][0]
            self._journal.written(self.sent, self._turn)
            self._journal.durable(self.sent, self._turn)
            if whole:
                with contextlib.suppress(OSError):  # they go the next time: all that they say is said again
                    self._results.forget_lines(claim, number)
        if new:
            self._offset = offset + new[-1][1] + len(new[-1][2])

    def _allowed(self) -> None:
        self._hold()

    def _hold(self) -> int:
        """The number of the claim."""
        try:
            self._fence.hold()
        except (ViewBrokenError, UserError) as error:
            self._over = error
            raise
        assert self._fence.number is not None  # held
        return self._fence.number
