"""Garbage collection between what is computed: Python's own comes while something large is parsed, and looks through all of it."""

import asyncio
import gc

from lmj_operator.backend.rounds import turn

THRESHOLDS = (1_000, 2, 8_000)
"""New objects until the new ones are looked through, which takes two microseconds for each; such times until those that stayed are; and times
of those until all are, which stops the loop for a quarter of a second where there are a thousand jobs: once in an hour, if they are all busy."""
PAUSE_SECONDS = 0.01
"""Between two looks at how many there are."""


async def collect_garbage() -> None:
    """Collect it until cancelled, what takes long in a round of the loop that has nothing else which does. What is there now is left alone."""
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
            gc.collect(2 if old >= THRESHOLDS[2] else 1)
    finally:
        gc.enable()
