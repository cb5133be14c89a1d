"""What a benchmark has found so far, for who waits for it."""

import sys
import time
from collections.abc import Callable

Say = Callable[[str], None]


def progress() -> Say:
    """Prints lines on stderr, each with the seconds since now."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {text}", file=sys.stderr, flush=True)

    return say
