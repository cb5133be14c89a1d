"""Says what takes its time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST_SECONDS = 2.0
THEN_SECONDS = 10.0


@contextmanager
def telling(what: str, say: Callable[[str], None], first: float = FIRST_SECONDS, then: float = THEN_SECONDS) -> Iterator[None]:
    """``say`` gets a line about ``what`` when the body takes longer than ``first`` seconds, and again every ``then`` seconds."""

    def tell() -> None:
        pause = first
        while not done.wait(pause):
            say(f"{what}: {time.monotonic() - begun:.0f} s")
            pause = then

    begun, done = time.monotonic(), threading.Event()
    thread = threading.Thread(target=tell, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
