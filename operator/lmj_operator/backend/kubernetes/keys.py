"""The operator's keys: files of a folder, which may be those of a Secret of its own namespace. Agents trust one of them, by their pods' spec."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from lmj_operator.backend.signing_key import SigningKey

SUFFIX = ".pem"
FIRST = f"0001{SUFFIX}"
"""The file that is made where there is none."""
MOST_KEYS = 16
LONGEST_FILE = 4096
"""Bytes; an Ed25519 key in PEM has 119."""
AGAIN_SECONDS = 10.0
"""The folder is read again after so long at most: keys are added and removed while jobs run."""

log = logging.getLogger(__name__)


class KeysError(Exception):
    """The folder cannot be used; the text says why, in one line."""


class Keys:
    """What is in the folder, and stays known where it cannot be read again."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises KeysError: there is no key that can be used."""
        self._folder, self._clock = folder, clock
        self._keys = read(folder)
        self._read_at, self._told = clock(), ""
        self._tell()

    @property
    def current(self) -> SigningKey:
        """The one that new pods trust: the last by the names of the files."""
        self._refresh()
        return self._keys[-1]

    def of(self, trusted: Iterable[str]) -> SigningKey | None:
        """The newest of which the public key is among ``trusted``; None: there is none."""
        self._refresh()
        wanted = frozenset(trusted)
        return next((key for key in reversed(self._keys) if key.public in wanted), None)

    def _refresh(self) -> None:
        if self._clock() - self._read_at < AGAIN_SECONDS:
            return
        self._read_at, before = self._clock(), [key.public for key in self._keys]
        try:
            found = read(self._folder)
        except KeysError as error:
            if str(error) != self._told:
                log.error("%s; the keys stay as they were", error)
            self._told = str(error)
            return
        self._told = ""
        if [key.public for key in found] != before:
            self._keys = found
            self._tell()

    def _tell(self) -> None:
        others = f"; those made before may trust {', '.join(key.public for key in self._keys[:-1])}" if self._keys[1:] else ""
        log.info("new pods trust %s%s", self._keys[-1].public, others)


def open_keys(folder: Path, *, make: bool) -> Keys:
    """Those in ``folder``. ``make``: where there is none one is made, for this user alone. Raises KeysError."""
    if make and not any(folder.glob(f"*{SUFFIX}")):
        try:
            _make(folder)
        except OSError as error:
            raise KeysError(f"{folder}: no key can be made there: {error.strerror}; name another with --agent-keys") from error
    return Keys(folder)


def _make(folder: Path) -> None:
    """Write the first key, whole or not at all; another operator may do so at the same time. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = folder / f".{FIRST}.{os.getpid()}"
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as out:
            out.write(SigningKey.generate().pem())
            out.flush()
            os.fsync(out.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(beside, folder / FIRST)
    finally:
        beside.unlink()


def read(folder: Path) -> list[SigningKey]:
    """The keys in ``folder``, by the names of their files. Raises KeysError, also where there is none."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and not path.name.startswith("."))
    except OSError as error:
        raise KeysError(f"{folder}: the operator's keys cannot be read: {error.strerror}") from error
    if not files:
        how = f"openssl genpkey -algorithm ed25519 -out {folder}/{FIRST}"
        raise KeysError(f"{folder}: no key (*{SUFFIX}) is there; make one: {how}")
    if len(files) > MOST_KEYS:
        raise KeysError(f"{folder}: {len(files)} keys are there, and {MOST_KEYS} are the most: remove those that no pod trusts")
    return [_read(file) for file in files]


def _read(file: Path) -> SigningKey:
    try:
        with file.open("rb") as opened:
            return SigningKey.of_pem(opened.read(LONGEST_FILE))
    except OSError as error:
        raise KeysError(f"{file}: the key cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise KeysError(f"{file}: {error}") from error
