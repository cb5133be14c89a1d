"""Trackio, through its client, and two of its private calls: what it has, and that it has it."""

import os
from collections.abc import Sequence
from typing import Any

from lmj_trainer.trackers.port import Begun, Note, Row, Subject


class Trackio:
    """A tracked run is known by its name, so that ends in the run's id. Without a server it is a file in the output folder."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        folder = subject.folder / "trackio"
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TRACKIO_DIR"] = str(folder)  # read once, at import
        import trackio

        self._trackio, self._folder = trackio, folder
        self._run: Any = None

    def begin(self) -> Begun:
        """As the port says."""
        subject, tracker = self._subject, self._subject.tracker
        self._run = self._trackio.init(
            project=tracker.project,
            name=f"{subject.name}-{subject.run.short}",
            space_id=tracker.space,
            server_url=tracker.uri,
            config=dict(subject.parameters),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return Begun(tracker.uri or tracker.space or str(self._folder), max(0, self._run._next_step - 1))

    def log(self, rows: Sequence[Row]) -> None:
        """As the port says. A server that does not answer is its library's to wait for, which keeps the rows on disk meanwhile."""
        for row in rows:
            self._run.log(dict(row.values), step=row.step)
        self._flush()

    def note(self, note: Note) -> None:
        """As the port says."""
        self._run.alert(f"view {note.view}", f"step {note.step}: {note.text}", level=self._trackio.AlertLevel.INFO)
        self._flush()

    def _flush(self) -> None:
        """Its thread writes twice a second: until then the rows would go with this process."""
        if self._subject.tracker.space is None and self._subject.tracker.uri is None:
            with self._run._client_lock:
                self._run._flush_queues_inline()

    def end(self) -> None:
        """As the port says."""
        self._run.finish()

    def leave(self) -> None:
        """As the port says."""
        self._run.finish()


def open_tracker(subject: Subject) -> Any:
    """A tracker of ``subject``."""
    return Trackio(subject)
