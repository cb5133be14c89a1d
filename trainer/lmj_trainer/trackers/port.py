"""What a tracker is asked to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from lmj_api.run import Run
from lmj_api.spec import Tracker as TrackerSpec


class Row(NamedTuple):
    """Values of a step, none of them infinite or no number."""

    step: int
    time: float | None
    """When it was committed, in seconds since the epoch; None: not known."""
    values: Mapping[str, float]
    """By name: ``train/loss``, ``validation/accuracy``."""


class Note(NamedTuple):
    """A change of the group that trains: what befell it, or what was asked of it."""

    view: int
    """Number of the view that it led to; each is noted once."""
    step: int
    """Committed steps from which that view went on."""
    text: str


@dataclass(frozen=True)
class Subject:
    """The run that is tracked."""

    job: str
    run: Run
    """A tracked run belongs to one of these, whatever it is called: it is found again by the id."""
    tracker: TrackerSpec
    parameters: Mapping[str, str]
    """The spec, field by field: ``training.learningRate``."""
    folder: Path
    """Where a tracker keeps what it does not send."""

    @property
    def name(self) -> str:
        """Of the tracked run."""
        return self.tracker.name or self.job


class Begun(NamedTuple):
    """The tracked run, found or made."""

    place: str
    """Where it is to be seen: an address or a folder."""
    step: int = 0
    """The newest step that the tracker has for certain; 0: none, or it does not tell."""


class Tracker(Protocol):
    """One tracked run. Any call may raise anything, and take its time: it is made again, after :meth:`begin` of another one."""

    def begin(self) -> Begun:
        """Find the run that belongs to the subject, or make it, and show its parameters."""

    def log(self, rows: Sequence[Row]) -> None:
        """Log ``rows``, in the order of their steps. When this returns they are the tracker's, whatever happens to this process.

        Rows that it has already, in a call that was not seen to return, do not appear twice where the tracker can tell.
        """

    def note(self, note: Note) -> None:
        """Show ``note``; again it is the same."""

    def end(self) -> None:
        """The run is complete."""

    def leave(self) -> None:
        """It is not, but goes on elsewhere, or later: let go of it."""
