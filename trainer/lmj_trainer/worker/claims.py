"""Where claims of who may write lie: in a folder that machines share, or in object storage."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lmj_trainer.store.port import Ref

_LONGEST = 4096
_NUMBER = re.compile(r"[1-9][0-9]{0,15}")


class Claims(Protocol):
    """Claims by number. The storage gives each number once. All methods may raise OSError."""

    @property
    def place(self) -> str:
        """Where they lie, for people."""

    @property
    def results(self) -> str:
        """What they are about, for people."""

    def numbers(self) -> list[int]:
        """Those that are there, in order."""

    def given(self) -> int:
        """The highest number that is known to have been given, where none is there any more; 0: none."""

    def read(self, number: int) -> bytes | None:
        """The claim; None: there is none."""

    def create(self, number: int, content: bytes) -> bool:
        """Make a claim, if there is none of that number; whether it was made."""

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove claims in this order, up to the first that stays. Raises nothing."""


class FolderClaims:
    """Files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> str:
        """As of :class:`Claims`."""
        return str(self._folder)

    @property
    def results(self) -> str:
        """As of :class:`Claims`."""
        return str(self._folder.parent)

    def numbers(self) -> list[int]:
        """As of :class:`Claims`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return _numbers(os.listdir(self._folder))

    def given(self) -> int:
        """As of :class:`Claims`."""
        return 0

    def read(self, number: int) -> bytes | None:
        """As of :class:`Claims`. It is opened: a look at a name alone may be answered by a cache."""
        try:
            with self._path(number).open("rb", buffering=0) as file:
                return file.read(_LONGEST)
        except FileNotFoundError:
            return None

    def create(self, number: int, content: bytes) -> bool:
        """As of :class:`Claims`."""
        path = self._path(number)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        try:
            # Not synced: after a power cut there is nobody left to be kept out.
            with os.fdopen(file, "wb", buffering=0) as out:
                out.write(content)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return True

    def remove(self, numbers: Iterable[int]) -> None:
        """As of :class:`Claims`."""
        with contextlib.suppress(OSError):
            for number in numbers:
                self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / str(number)


class StoreClaims:
    """Files of a folder in a store, which decides who creates one."""

    def __init__(self, folder: Ref, given: Callable[[], int]) -> None:
        """``given``: as of :class:`Claims`; somebody may have removed the folder."""
        self._folder, self._given = folder, given

    @property
    def place(self) -> str:
        """As of :class:`Claims`."""
        return str(self._folder)

    @property
    def results(self) -> str:
        """As of :class:`Claims`."""
        return str(self._folder.parent)

    def numbers(self) -> list[int]:
        """As of :class:`Claims`."""
        try:
            return _numbers(self._folder.files())
        except FileNotFoundError:
            return []

    def given(self) -> int:
        """As of :class:`Claims`."""
        return self._given()

    def read(self, number: int) -> bytes | None:
        """As of :class:`Claims`."""
        try:
            return (self._folder / str(number)).get(0, _LONGEST)
        except FileNotFoundError:
            return None

    def create(self, number: int, content: bytes) -> bool:
        """As of :class:`Claims`."""
        return (self._folder / str(number)).create(content)

    def remove(self, numbers: Iterable[int]) -> None:
        """As of :class:`Claims`."""
        with contextlib.suppress(OSError):
            for number in numbers:
                (self._folder / str(number)).delete()


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))
