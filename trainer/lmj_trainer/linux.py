"""What Linux alone offers to processes that start others, and to those that are started."""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SESSION = Path("/proc/self/autogroup")
"""The nice value of this process's session."""
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Have this process killed when the thread that is its parent now ends. Elsewhere than on Linux: nothing.

    Fit to be called between fork and exec. The parent may have ended already: compare ``os.getppid()`` afterwards.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans(adopt: bool = True) -> bool:
    """Make this process the parent of its descendants' orphans (no longer, for False); False when the system cannot."""
    return _libc is not None and _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) == 0


def give_way() -> None:
    """Have all threads of this process's group go on in what others leave of the processor: what is to be done here has no hurry."""
    # Not the last there is: on a machine without a core to spare that would take long. A thread that has less already may not have more.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PGRP, 0, max(10, os.getpriority(os.PRIO_PGRP, 0)))


class _SessionNice:
    """The nice value that this process's session is to have; the kernel takes one change in a tenth of a second, of all users together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0

    def want(self, value: int) -> None:
        """Have it be ``value``, now or as soon as it can be."""
        with self._lock:
            self._wanted = value
            if not self._try():
                threading.Thread(target=self._retry, args=(value,), name="session-nice", daemon=True).start()

    def _retry(self, value: int) -> None:
        for _ in range(600):
            time.sleep(0.05)
            with self._lock:
                if self._wanted != value or self._try():
                    return
        log.warning("this session's nice value could not be set to %d within half a minute", value)

    def _try(self) -> bool:
        """False: it is to be tried again."""
        try:
            _SESSION.write_text(f"{self._wanted}")
        except BlockingIOError:
            return False
        except OSError:
            pass  # there is no such thing here
        return True


_session_nice = _SessionNice()


@contextlib.contextmanager
def behind_others() -> Iterator[None]:
    """Have this process's session wait for its turn where other sessions of the machine want the processor, meanwhile.

    Other than a nice value it can be taken back without a privilege. Where sessions are not scheduled as such (in containers): nothing.
    """
    _session_nice.want(10)
    try:
        yield
    finally:
        _session_nice.want(0)


def stay_behind() -> None:
    """Have this process's session take what other sessions leave of the processor, until one of its processes calls :func:`like_others`.

    Five seconds of a start take three minutes then on a machine that has nothing to spare, and five seconds on any other.
    """
    _session_nice.want(15)


def like_others() -> None:
    """Have this process's session have its part of the processor again, whichever of its processes gave it up."""
    with contextlib.suppress(OSError):  # there is no such thing here
        if not _SESSION.read_text().rstrip().endswith(" 0"):
            _session_nice.want(0)


def thread_count() -> int:
    """Threads of this process, those that Python knows nothing of too."""
    return len(os.listdir("/proc/self/task"))


def proportional_bytes(pid: int) -> int | None:
    """Memory of a process, where a page that n processes share counts as 1/n; None when it is gone or another user's."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("Pss:")]
    return int(found[0]) * 1024 if found else None


def show_arguments(arguments: Sequence[str]) -> None:
    """Make ``arguments`` what lists of processes show as this one's command line, as far as the real one leaves room for it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end; 0 where the kernel does not tell
    room = end - start
    if start == 0 or room <= 0:
        return
    line = "\0".join(arguments).encode("utf-8", "surrogateescape")[: room - 1]
    # The last byte stays 0: another one there means to the kernel that the line goes on in the environment.
    ctypes.memmove(start, line.ljust(room, b"\0"), room)
