"""A lane for those who want more than anybody needs."""

import asyncio
import time

from lmj_operator.backend.turns import Turns


class Lane:
    """``a_second`` pieces of work a second, of all jobs together, and ``burst`` more after a rest. Namespaces take turns, and in a namespace its
    jobs do.
    """

    def __init__(self, a_second: float, burst: int = 0) -> None:
        self._seconds = 1 / a_second
        self._rest = burst * self._seconds
        self._due = 0.0
        self._turns = Turns(1, 1)

    async def wait(self, pieces: int = 1) -> None:
        """Until so many may be done for the job that the task works for."""
        async with self._turns.taken():
            now = time.monotonic()
            self._due = max(self._due, now - self._rest) + pieces * self._seconds
            if self._due > now:
                await asyncio.sleep(self._due - now)
