"""Whose checkpoints they are: a job's, with a state that depends on the same things, and among those one run's."""

from dataclasses import dataclass, field
from typing import Self

from pydantic import ValidationError

from lmj_api.manifest import Manifest
from lmj_api.run import Run

OWNER_FILE = ".owner"
"""File name, in a checkpoint's folder, of whose it is: known also while there is no manifest that says so."""


@dataclass(frozen=True)
class Owner:
    """Who writes checkpoints."""

    job: str
    state_digest: str
    run: Run = field(default_factory=Run)

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Who wrote ``manifest``."""
        return cls(manifest.job, manifest.state_digest, manifest.run or Run())

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """The inverse of :meth:`line`; None: it is none."""
        job, *rest = line.split(" ")
        try:
            match rest:
                case [digest]:
                    return cls(job, digest)
                case [digest, run, begun]:
                    return cls(job, digest, Run.model_validate({"id": run, "begun": float(begun)}))
        except (ValidationError, ValueError):
            return None
        return None

    @property
    def line(self) -> str:
        """One line that says it."""
        return f"{self.job} {self.state_digest}" + (f" {self.run.id} {self.run.begun!r}" if self.run.known else "")

    def same_run(self, other: Self) -> bool:
        """Whether ``other`` is this very run of the job, whatever values it goes on with."""
        return (
            other.job == self.job and other.run.id == self.run.id and (self.run.known or other.state_digest == self.state_digest)
        )

    def succeeds(self, other: Self) -> bool:
        """Whether this run goes on with what ``other``, an earlier run of the same job, has left."""
        earlier = not other.run.known or other.run.precedes(self.run)
        same = (other.job, other.state_digest) == (self.job, self.state_digest)
        return same and other.run.id != self.run.id and earlier
