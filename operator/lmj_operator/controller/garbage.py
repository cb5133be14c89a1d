"""Garbage collection between what is computed: Python's own comes while something large is parsed, and looks through all of it."""

import asyncio
import gc
import resource
from pathlib import Path

from lmj_operator.backend.rounds import turn

THRESHOLDS = (1_000, 2, 8_000)
"""New objects until the new ones are looked through, which takes two microseconds for each; such times until those that stayed are; and times
of those until all are, which stops the loop for a quarter of a second where there are a thousand jobs: once in an hour, if they are all busy."""
GROWTH = 256 << 20
"""Bytes of memory that are more than after all were looked through last, and then they are looked through: cycles may hold what is large."""
PAUSE_SECONDS = 0.01
"""Between two looks at how many there are."""


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def collect_garbage() -> None:
    """Collect it until cancelled, what takes long in a round of the loop that has nothing else which does. What is there now is left alone."""
    before = resident()
    gc.freeze()
    gc.disable()
    try:
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            young, middle, old = gc.get_count()
            if young < THRESHOLDS[0]:
                continue
            if middle < THRESHOLDS[1]:
                gc.collect(0)  # at once: it takes two milliseconds, and more if it waits
                continue
            await turn(long=True)
            if old < THRESHOLDS[2] and resident() < before + GROWTH:
                gc.collect(1)
                continue
            gc.collect(2)
            before = resident()
    finally:
        gc.enable()
