"""The loop: how soon it looks again."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from lmj_api.status import JobStatus, Phase
from lmj_operator import reconcile
from lmj_operator.backend.port import PodEvent
from lmj_operator.plan import Plan
from lmj_operator.reconcile import Pass, Reconciler


class Restless:
    """Of whom something is heard all the time."""

    async def events(self) -> AsyncIterator[PodEvent]:
        while True:
            await asyncio.sleep(0.005)
            yield PodEvent("p", 0, None)

    def heard(self, event: PodEvent) -> None:
        pass


@pytest.mark.parametrize(("phase", "shortest"), [(Phase.PENDING, 0.1), (Phase.RUNNING, 0.01), (Phase.RECOVERING, 0.01)])
async def test_while_a_job_starts_what_comes_soon_after_is_looked_at_with_it(
    monkeypatch: pytest.MonkeyPatch, phase: Phase, shortest: float
) -> None:
    at: list[float] = []

    async def step() -> Pass:
        at.append(time.monotonic())
        return made.kept(Plan(JobStatus(phase=phase), "", wake_after=60.0))

    monkeypatch.setattr(reconcile, "SHORTEST_PASS_SECONDS", 0.01)
    both: Any = Restless()
    made = Reconciler(both, both, rest_seconds=60.0, start_seconds=0.1)
    monkeypatch.setattr(made, "step", step)
    async with asyncio.timeout(10):
        await made.run(until=lambda _: len(at) == 4)
    gaps = [after - before for before, after in pairwise(at)]
    assert min(gaps) >= shortest * 0.9
