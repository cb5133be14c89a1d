"""What many processes need is made once: one holds a lease and makes it, the others wait for what becomes of it."""

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lmj_trainer.errors import OutageError
from lmj_trainer.lease import Lease, Say, Seen

log = logging.getLogger("lmj.lease")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0
_WORD_SECONDS = 5.0
"""Between two words of somebody who waits."""


def once(
    target: Path,
    make: Callable[[Say], object],
    what: str,
    say: Say,
    seconds: float,
    who: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when the folder ``target`` is there, or ``make`` was called, which makes it, or has its reasons why not.

    Of all processes that want the same, one calls it at a time; it gets a ``say`` whose lines the others see. ``what`` it is that is made,
    and ``who`` this process is, for people. Raises what ``make`` does, and OutageError when another has been at it for ``seconds``.
    """
    waiting = _Waiting(target, what, who or f"process {os.getpid()} on {socket.gethostname()}", say, seconds, clock, sleep)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lease = waiting.wait()
    except OSError as error:
        log.warning("%s: no lease in %s: %s", what, target.parent, error)
        make(say)
        return
    if lease is not None:
        with lease.held():
            # Between the last look and the lease it may have been made.
            if not target.is_dir():
                make(lease.passing_on(say))
    elif not waiting.there:
        make(say)


@dataclass
class _Waiting:
    """For a folder, or for the lease to make it."""

    target: Path
    what: str
    who: str
    say: Say
    seconds: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    there: bool = False
    """It was seen."""

    def wait(self) -> "Lease | None":
        """The lease to make it. None: it is there, or the one who made it gave up, so that all may as well try at once."""
        begun = changed = self.clock()
        said: float | None = None
        seen, gone, pause = None, False, _FIRST_PAUSE_SECONDS
        while True:
            self.there, numbers = self._look()
            now = self.clock()
            if self.there:
                return None
            newest = Seen.of(self._path(numbers[-1]), numbers[-1]) if numbers else None
            if newest is None:
                # A listing of many names may be of two moments, so once is not enough.
                if seen is not None and gone:
                    return None
                gone = seen is not None
            if newest is not None and newest != seen:
                seen, changed, gone = newest, now, False
            over = None if newest is None else newest.over(now - changed)
            if (newest is None and not gone) or over is not None:
                lease = Lease.take(self._path, numbers[-1] + 1 if numbers else 1, self.who)
                if lease is not None:
                    if over is not None:
                        self.say(f"{over}: takes over {self.what}")
                    return lease
            if newest is not None:
                if now - begun >= self.seconds:
                    raise OutageError(
                        f"{self.what} is not there after {self.seconds:.0f} s: {newest.doing}; where that takes longer, raise "
                        "recovery.startTimeoutSeconds"
                    )
                if said is None or now - said >= _WORD_SECONDS:
                    said = now
                    self.say(f"waits for {self.what}: {newest.doing}")
            self.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _look(self) -> tuple[bool, list[int]]:
        """Whether it is there, and the numbers of leases, in order. One listing, so that no lease means that it had come."""
        names, prefix = os.listdir(self.target.parent), self._path(0).name.removesuffix("0")
        numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return self.target.name in names, sorted(int(number) for number in numbers if number.isdecimal())

    def _path(self, number: int) -> Path:
        return self.target.with_name(f".lease-{self.target.name}.{number}")
