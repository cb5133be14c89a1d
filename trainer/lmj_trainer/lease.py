"""A lease: the right to make something on a folder that many processes share, which its holder renews.

They share the folder and nothing else, of any kind that has exclusive creation: so a lease is a file, and holding it longer a write. It
is not what keeps the result whole: that is built aside and renamed. Two that hold one do double work, and no harm.

A lease whose holder died is not removed by others, because one who is slow would remove that of the next: the next lease has the next
number, and is made exclusively. Clocks of machines differ, so nobody compares times: a lease has expired when its file has not
changed for so long by the clock of who looks; at once where they can tell that its process is gone.
"""

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmj_trainer.wording import one_line

log = logging.getLogger("lmj.lease")

Say = Callable[[str], None]

RENEW_SECONDS = 5.0
EXPIRE_SECONDS = 60.0
"""Longer than a client of shared storage may answer from its cache."""
_SIZE = 4096
"""Bytes of a lease's file, always: it is written in place, and never shorter meanwhile."""


@dataclass(frozen=True)
class Seen:
    """A lease of another, as its file was."""

    number: int
    content: bytes

    @classmethod
    def of(cls, path: Path, number: int) -> "Seen | None":
        """None: it is not there any more."""
        try:
            with path.open("rb") as file:
                return cls(number, file.read(_SIZE))
        except FileNotFoundError:
            return None

    def over(self, seconds: float) -> str | None:
        """Why nobody holds it any more, as it has not changed for ``seconds``; None: somebody does."""
        said, here = self._said(), _here()
        if here is not None and said.get("here") == here and not _lives(said.get("pid")):
            return f"{self._called} is gone"
        return f"{self._called} has not been heard of for {seconds:.0f} s" if seconds >= EXPIRE_SECONDS else None

    @property
    def doing(self) -> str:
        """Who is at it since when, and with what."""
        said = self._said()
        line = f" ({one_line(str(said['says']))})" if said.get("says") else ""
        seconds = said.get("seconds")
        return f"{self._called} has been at it for {seconds if isinstance(seconds, int) else 0} s{line}"

    @property
    def _called(self) -> str:
        return one_line(str(self._said().get("who", "another process")))

    def _said(self) -> dict[str, Any]:
        # Where it was just made, or is written at this moment, it says nothing yet; and anybody may write to shared storage.
        try:
            said = json.loads(self.content)
        except (ValueError, RecursionError):
            return {}
        return said if isinstance(said, dict) else {}


def _here() -> str | None:
    """Where process ids mean the same as here: this start of this machine, and these processes of it. None: it cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _lives(pid: object) -> bool:
    """Whether there is such a process here; so it seems of what is no process's id."""
    if not isinstance(pid, int) or not 0 < pid < 1 << 31:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Lease:
    """The right to make something, while it is renewed."""

    def __init__(self, path_of: Callable[[int], Path], number: int, who: str, file: int) -> None:
        self._path_of, self._number, self._who, self._file = path_of, number, who, file
        self._nonce, self._begun, self._says = secrets.token_hex(8), time.monotonic(), ""
        self._done = threading.Event()
        self._beats = 0

    @classmethod
    def take(cls, path_of: Callable[[int], Path], number: int, who: str) -> "Lease | None":
        """The lease of that number; None: another has it. Raises OSError where files cannot be made."""
        try:
            file = os.open(path_of(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return None
        return cls(path_of, number, who, file)

    def passing_on(self, say: Say) -> Say:
        """``say``, whose lines those who wait see too."""

        def both(line: str) -> None:
            self._says = one_line(line)
            say(line)

        return both

    @contextmanager
    def held(self) -> Iterator[None]:
        """Renew it meanwhile, and give it back."""
        self._write()
        thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join(RENEW_SECONDS)
            self._give_back()

    def _renew(self) -> None:
        while not self._done.wait(RENEW_SECONDS):
            self._write()

    def _write(self) -> None:
        self._beats += 1
        seconds = round(time.monotonic() - self._begun)
        said = {"who": self._who, "here": _here(), "pid": os.getpid(), "nonce": self._nonce, "beat": self._beats}
        said |= {"seconds": seconds, "says": self._says}
        try:
            os.pwrite(self._file, json.dumps(said).encode().ljust(_SIZE)[:_SIZE], 0)
            os.fsync(self._file)
        except OSError as error:
            # Whoever waits takes over then, and the first that is done wins.
            log.warning("the lease %s cannot be renewed: %s", self._path_of(self._number), error)

    def _give_back(self) -> None:
        """Remove it, after those before it: they would be waited for."""
        path = self._path_of(self._number)
        try:
            os.close(self._file)
            for number in range(1, self._number):
                self._path_of(number).unlink(missing_ok=True)
            # Where others were faster, this name may be another's by now.
            if (left := Seen.of(path, self._number)) is not None and self._nonce.encode() in left.content:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the lease %s cannot be given back: %s", path, error)
