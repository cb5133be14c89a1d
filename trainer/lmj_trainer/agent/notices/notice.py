"""What a cloud says of a machine that it is about to take away."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """One of them."""

    reason: str
    """A clause on the machine, ``it``: what is done to it, and when."""
    at: float | None = None
    """When, seconds since the epoch by the machine's clock; None: that is not said."""
