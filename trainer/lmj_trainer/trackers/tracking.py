"""One tracker and the records that it is fed from."""

from collections.abc import Callable

from lmj_trainer.trackers.cursor import CursorFile
from lmj_trainer.trackers.port import Tracker
from lmj_trainer.trackers.records import Batch, Records

BATCH = 200
"""Steps that are logged at once. What waits is in the run's files: nothing is kept in memory, and nothing has to be dropped."""


class Tracking:
    """Logs what is recorded and not logged yet. Whatever is raised, the same call made again goes on where it was."""

    def __init__(self, make: Callable[[], Tracker], records: Records, file: CursorFile, run: str, begins: int) -> None:
        """``make``: a tracker that has not begun. ``run``: the run's id; ``begins``: the step that its newest part went on from."""
        self._make, self._records, self._file = make, records, file
        self._cursor = file.read(run, begins)
        self._kept = self._cursor
        self._tracker: Tracker | None = None
        self._pending: Batch | None = None
        """What was read and is not logged yet."""

    @property
    def place(self) -> str | None:
        """Where the tracked run is to be seen, once it has begun."""
        return self._cursor.place

    @property
    def step(self) -> int:
        """The newest step that is logged."""
        return self._cursor.step

    def turn(self, *, last: bool = False) -> bool:
        """Log a batch; whether there is more. ``last``: nothing more will be recorded. Raises whatever the tracker does, and OSError."""
        tracker = self._tracker
        if tracker is None:
            tracker = self._make()
            begun = tracker.begin()
            self._tracker = tracker
            # What it has was logged, though this file may have been lost since.
            step = max(self._cursor.step, begun.step)
            self._pending = self._pending if step == self._cursor.step else None
            self._cursor = self._cursor.model_copy(update={"place": begun.place, "step": step})
        batch = self._pending or self._records.after(self._cursor, BATCH, last=last)
        self._pending = batch
        try:
            if batch.rows:
                tracker.log(batch.rows)
            for note in batch.notes:
                tracker.note(note)
        except BaseException:
            self._tracker = None  # it may be a connection that will never work again
            raise
        self._pending = None
        self._cursor = batch.cursor.model_copy(update={"place": self._cursor.place})
        self.keep()
        return batch.more

    def keep(self) -> None:
        """Have the file say how far it is. Raises OSError: then it does not yet, and what is logged stays known here."""
        if self._cursor != self._kept:
            self._file.write(self._cursor)
            self._kept = self._cursor

    def end(self, *, complete: bool) -> None:
        """The run is ``complete``, or goes on elsewhere."""
        if self._tracker is not None:
            (self._tracker.end if complete else self._tracker.leave)()
            self._tracker = None
