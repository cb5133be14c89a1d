"""Seconds since the epoch, as the text that Kubernetes writes, and back."""

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """``1.5`` becomes ``1970-01-01T00:00:01.500Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_seconds(text: str) -> float:
    """The inverse of :func:`rfc3339`. Raises ValueError for another format."""
    return datetime.fromisoformat(text).timestamp()
