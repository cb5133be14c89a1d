"""A clock to judge by: nobody sets it while a process lives."""

import time

_BEGIN = time.time() - time.monotonic()


def steady_time() -> float:
    """Seconds since the epoch, as the machine's clock had them when this process began, and evenly from there on."""
    return _BEGIN + time.monotonic()
