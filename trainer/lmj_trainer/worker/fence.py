"""Who may write into a folder that several machines share: rank 0 of the newest view of the newest run."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from lmj_api.base import Message
from lmj_api.bounds import LARGEST, Name
from lmj_api.run import Run
from lmj_trainer.errors import UserError
from lmj_trainer.transport.inbox import ViewBrokenError

_TRIES = 100
_TORN_SECONDS = 1.0
"""For which a claim may be empty: between its name and its content nothing else is done."""
_LONGEST = 4096
_NUMBER = re.compile(r"[1-9][0-9]{0,15}")


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
    """A folder of claims, numbered from 1. The one with the highest number counts; each number is given once, by the storage, to the one that
    creates its file first. So one that looked, slept, and wakes when another has come, cannot put its claim above the other's.

    A claim that is not the newest any more is removed by its successor: to hold is to find one's own as one wrote it. It is opened for
    that: a look at a name alone may be answered by a cache. Checkpoints are kept apart by their folders' names.
    """

    def __init__(self, folder: Path, claim: Claim) -> None:
        self._folder, self._claim = folder, claim
        self._content = claim.to_json().encode() + b"\n"
        self._number: int | None = None

    def hold(self) -> None:
        """Be the one that may write. Raises ViewBrokenError when a newer view does, UserError when a later run does, OSError when that cannot be
        told.
        """
        if self._number is not None and self._read(self._number) == self._content and self._read(self._number + 1) is None:
            return
        self._number, mine = None, None
        self._folder.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            numbers = sorted(int(name) for name in os.listdir(self._folder) if _NUMBER.fullmatch(name))
            newest = numbers[-1] if numbers else 0
            if newest == mine and self._read(newest) == self._content:
                self._number = newest
                self._remove(numbers[:-1])
                return
            self._give_way(newest)
            # Looked at again: the number may have been somebody's before, who was followed meanwhile.
            if self._create(newest + 1):
                mine = newest + 1
        raise OSError(errno.EBUSY, f"others came first {_TRIES} times", str(self._folder))

    def _remove(self, numbers: list[int]) -> None:
        """In this order, up to the first that stays: whose claim is there still finds the next one when it looks."""
        with contextlib.suppress(OSError):
            for number in numbers:
                self._path(number).unlink(missing_ok=True)

    def _give_way(self, number: int) -> None:
        other = self._look(number)
        if other is None or not self._claim.precedes(other):
            return
        output = self._folder.parent
        if other.run.id == self._claim.run.id:
            why = f"another rank 0 writes into {output}: view {other.view} has begun, in {other.pod}"
            raise ViewBrokenError(why)
        raise UserError(
            f"{output}: a later run writes there ({other.run.id}, in {other.pod}), so this one has ended; two jobs need two folders:"
            f" choose another output.path, or remove {self._folder} if that run is gone"
        )

    def _look(self, number: int) -> Claim | None:
        """The claim of ``number``; None: there is none, or it is nobody's."""
        deadline = time.monotonic() + _TORN_SECONDS
        while number and (content := self._read(number)) is not None:
            if content:
                with contextlib.suppress(ValidationError):
                    return Claim.model_validate_json(content)
                return None
            if time.monotonic() > deadline:
                return None  # its owner died in between
            time.sleep(0.05)
        return None

    def _create(self, number: int) -> bool:
        path = self._path(number)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        try:
            # Not synced: after a power cut there is nobody left to be kept out.
            with os.fdopen(file, "wb", buffering=0) as out:
                out.write(self._content)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return True

    def _read(self, number: int) -> bytes | None:
        try:
            with self._path(number).open("rb", buffering=0) as file:
                return file.read(_LONGEST)
        except FileNotFoundError:
            return None

    def _path(self, number: int) -> Path:
        return self._folder / str(number)
