"""Who may write where several machines can: rank 0 of the newest view of the newest run."""

from __future__ import annotations

import contextlib
import errno
import time
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, ValidationError

from lmj_api.base import Message
from lmj_api.bounds import LARGEST, Name
from lmj_api.run import Run
from lmj_trainer.errors import UserError
from lmj_trainer.transport.inbox import ViewBrokenError

if TYPE_CHECKING:
    from lmj_trainer.worker.claims import Claims

_TRIES = 100
_TORN_SECONDS = 1.0
"""For which a claim may be empty: between its name and its content nothing else is done."""


class Claim(Message):
    """Who somebody is that writes."""

    run: Run
    view: Annotated[int, Field(ge=1, le=LARGEST)]
    pod: Name

    @property
    def mark(self) -> str:
        """For names of what only this one writes."""
        return f"{self.run.short}-v{self.view}-{self.pod}"

    def precedes(self, other: Claim) -> bool:
        """Whether ``other`` is of a newer run, or of a newer view of the same."""
        return self.view < other.view if other.run.id == self.run.id else self.run.precedes(other.run)


class Fence:
    """Claims, numbered from 1. The one with the highest number counts; each number is given once, by the storage, to the one that
    creates its file first. So one that looked, slept, and wakes when another has come, cannot put its claim above the other's.

    A claim that is not the newest any more is removed by its successor: to hold is to find one's own as one wrote it. Checkpoints are kept
    apart by their folders' names.
    """

    def __init__(self, claims: Claims, claim: Claim) -> None:
        self._claims, self._claim = claims, claim
        self._content = claim.to_json().encode() + b"\n"
        self._number: int | None = None

    @property
    def number(self) -> int | None:
        """That of the own claim, which nobody else ever has; None: it was not held yet, or not when it was looked at last."""
        return self._number

    def hold(self) -> None:
        """Be the one that may write. Raises ViewBrokenError when a newer view does, UserError when a later run does, OSError when that cannot be
        told.
        """
        claims = self._claims
        if self._number is not None and claims.read(self._number) == self._content and claims.read(self._number + 1) is None:
            return
        self._number, mine = None, None
        for _ in range(_TRIES):
            numbers = claims.numbers()
            newest = numbers[-1] if numbers else claims.given()
            if newest == mine and claims.read(newest) == self._content:
                self._number = newest
                # In this order: whose claim is there still finds the next one when it looks.
                claims.remove(numbers[:-1])
                return
            self._give_way(newest)
            # Looked at again: the number may have been somebody's before, who was followed meanwhile.
            if claims.create(newest + 1, self._content):
                mine = newest + 1
        raise OSError(errno.EBUSY, f"others came first {_TRIES} times", claims.place)

    def _give_way(self, number: int) -> None:
        other = self._look(number)
        if other is None or not self._claim.precedes(other):
            return
        output = self._claims.results
        if other.run.id == self._claim.run.id:
            why = f"another rank 0 writes into {output}: view {other.view} has begun, in {other.pod}"
            raise ViewBrokenError(why)
        raise UserError(
            f"{output}: a later run writes there ({other.run.id}, in {other.pod}), so this one has ended; two jobs need two folders:"
            f" choose another output.path, or remove {self._claims.place} if that run is gone"
        )

    def _look(self, number: int) -> Claim | None:
        """The claim of ``number``; None: there is none, or it is nobody's."""
        deadline = time.monotonic() + _TORN_SECONDS
        while number and (content := self._claims.read(number)) is not None:
            if content:
                with contextlib.suppress(ValidationError):
                    return Claim.model_validate_json(content)
                return None
            if time.monotonic() > deadline:
                return None  # its owner died in between
            time.sleep(0.05)
        return None
