"""What a cluster tells about a job, beside its status."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that the operator told about a job."""

    time: str
    """When it was posted last, RFC 3339, to the second."""
    reason: str
    """What it was, in one CamelCase word: ``Running``, ``Moved``, ``PodGone``."""
    message: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.time} {self.reason}: {self.message}"


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a pod's log."""

    pod: str
    rank: int | None
    """The rank that the pod is by now; None: a standby."""
    text: str

    def __str__(self) -> str:
        return f"{self.pod}: {self.text}"
