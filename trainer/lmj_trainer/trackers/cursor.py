"""How far a tracker is, in a file beside the results: whichever process goes on with the run logs no step again."""

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from lmj_api.base import Message
from lmj_api.bounds import Count
from lmj_api.run import UUID
from lmj_api.spec import Tracker
from lmj_trainer.durable import write_atomically


class Cursor(Message):
    """What is logged."""

    run: Annotated[str, Field(pattern=UUID)]
    """Id of the run."""
    begins: Count = 0
    """Step that the newest part of the run went on from (``training.continues``)."""
    step: Count = 0
    """Newest step."""
    evaluations: list[tuple[str, Count]] = []  # noqa: RUF012 - pydantic copies it
    """Split and step of each evaluation."""
    view: Count = 1
    """Newest view that was noted; the first is no change."""
    place: str | None = None
    """Where the tracked run is to be seen."""

    def of_part(self, begins: int) -> "Cursor":
        """For the part of the run that went on from step ``begins``: later steps of the part before it were not this one's."""
        if begins == self.begins:
            return self
        evaluations = [(split, step) for split, step in self.evaluations if step <= begins]
        return self.model_copy(update={"begins": begins, "step": min(self.step, begins), "evaluations": evaluations})


class CursorFile:
    """The cursor of one tracker in ``folder``."""

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        where = "\n".join(map(str, (tracker.kind, tracker.project, tracker.uri, tracker.space, tracker.offline)))
        self.path = folder / f"{tracker.kind.lower()}-{hashlib.sha256(where.encode()).hexdigest()[:8]}.json"

    def read(self, run: str, begins: int) -> Cursor:
        """As it was written; of another run, or of nobody's making: the beginning. Raises OSError."""
        try:
            cursor = Cursor.model_validate_json(self.path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return Cursor(run=run, begins=begins)
        return cursor.of_part(begins) if cursor.run == run else Cursor(run=run, begins=begins)

    def write(self, cursor: Cursor) -> None:
        """Keep ``cursor``, atomically. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, cursor.to_json().encode() + b"\n")
