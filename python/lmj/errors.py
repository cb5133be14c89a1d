"""What goes wrong, as exceptions: the text of each is what ``lmj`` would say, one line for each mistake."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmj.result import Result


class LmjError(Exception):
    """All that this package raises, but :class:`RunInterrupted`."""


class JobError(LmjError, ValueError):
    """A mistake of the user's in the job, its data or its model. No other try can do better."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        """One for each mistake."""


class RunError(LmjError, RuntimeError):
    """The job cannot be run here now: another one trains into its folder, the trainer is not installed."""


class JobFailed(LmjError, RuntimeError):  # noqa: N818 - it names what happened
    """The job ended in the phase ``Failed``."""

    def __init__(self, message: str, result: "Result") -> None:
        super().__init__(message)
        self.result = result
        """What it came to."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended a run on this machine; the same call goes on from there. As a :class:`KeyboardInterrupt` it ends a script."""

    def __init__(self, message: str, result: "Result | None") -> None:
        super().__init__(message)
        self.result = result
        """What it came to; None: it had not begun to train."""


class ClusterError(LmjError, RuntimeError):
    """The cluster said no, or nothing."""


class NotFound(ClusterError, LookupError):  # noqa: N818 - it names what is the matter
    """There is no such job on the cluster."""


class WaitTimeout(LmjError, TimeoutError):  # noqa: N818 - it names what happened
    """What was waited for did not come in time."""
