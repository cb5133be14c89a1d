"""How a worker ended, in words."""

import signal
from collections.abc import Sequence

from lmj_api.protocol import USER_ERROR, Exit
from lmj_trainer.wording import signal_name

_PREFIX = "error: "


def describe(code: int, stderr: Sequence[str], reason: str | None = None) -> Exit:
    """How a process ended that left with ``code`` (negative: a signal) and ``stderr`` (its last lines).

    ``reason``: why the agent killed it, if it did not leave by itself first. A user's error is the last line that begins with
    ``error: ``, without that.
    """
    # SIGUSR1 asks it where it stands; one that does not know that yet ends by it.
    by_agent = code in (-signal.SIGKILL, -signal.SIGUSR1)
    return Exit(code=code, message=(reason if by_agent else None) or _message(code, stderr), stderr=list(stderr))


def _message(code: int, stderr: Sequence[str]) -> str:
    if code == USER_ERROR:
        for line in reversed(stderr):
            if line.startswith(_PREFIX):
                return line.removeprefix(_PREFIX)
    if code < 0:
        return f"killed by {signal_name(-code)}"
    last = next((line.strip() for line in reversed(stderr) if line.strip()), None)
    return last or f"left with exit code {code} and no message"
