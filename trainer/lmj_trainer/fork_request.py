"""What an agent asks of its fork server: one message a start, with open files beside it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

LONGEST_REQUEST = 1 << 16
"""Bytes of a request."""
MOST_FILES = 16
"""Open files that may go with one."""
GO = b"go"
"""What a child waits for: until then it does nothing, and it never does if its agent gave up on it."""


@dataclass(frozen=True)
class Request:
    """Have a worker. Beside it go the worker's end of its start, its stdout, its stderr, and one open file for each of ``options``."""

    parent: int
    """Process id of the agent: the worker lives under it, or not at all."""
    arguments: Sequence[str]
    """The worker's command line, without ``options``."""
    options: Sequence[str]
    """Options that are followed by the number of an open file."""

    def to_bytes(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Request":
        """As it was received. Raises ValueError, TypeError."""
        return cls(**json.loads(data))
