"""Weights & Biases, through its client."""

import tempfile
from collections.abc import Sequence
from typing import Any

import wandb

from lmj_trainer.trackers.port import Begun, Note, Row, Subject

_STEP = "step"


class WeightsAndBiases:
    """A tracked run has the id of the run. Its rows carry the step as a value: its own count of rows only grows, and an evaluation may be of a
    step before the newest.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._run: Any = None

    def begin(self) -> Begun:
        """As the port says."""
        subject, tracker = self._subject, self._subject.tracker
        entity, _, project = tracker.project.rpartition("/")
        offline = tracker.offline
        folder = subject.folder if offline else tempfile.mkdtemp(prefix="lmj-wandb-")
        subject.folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True, init_timeout=60
        )
        if tracker.uri is not None:
            settings.base_url = tracker.uri
        self._run = wandb.init(
            entity=entity or None,
            project=project,
            id=subject.run.id,
            name=subject.name,
            dir=str(folder),
            mode="offline" if offline else "online",
            resume=None if offline else "allow",
            settings=settings,
        )
        self._run.config.update(dict(subject.parameters), allow_val_change=True)
        self._run.define_metric(_STEP, hidden=True)
        self._run.define_metric("*", step_metric=_STEP)
        known = None if offline else self._run.summary.get(_STEP)
        return Begun(self._run.url or str(self._run.dir), known if isinstance(known, int) else 0)

    def log(self, rows: Sequence[Row]) -> None:
        """As the port says."""
        for row in rows:
            when = {} if row.time is None else {"_timestamp": row.time}
            self._run.log({_STEP: row.step, **row.values, **when}, commit=True)

    def note(self, note: Note) -> None:
        """As the port says."""
        self._run.summary[f"view {note.view}"] = f"step {note.step}: {note.text}"

    def end(self) -> None:
        """As the port says."""
        self._run.finish(exit_code=0)

    def leave(self) -> None:
        """As the port says: its server shows the run as finished until somebody goes on with it."""
        self._run.finish(exit_code=0)


def open_tracker(subject: Subject) -> Any:
    """A tracker of ``subject``."""
    return WeightsAndBiases(subject)
