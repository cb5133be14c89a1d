"""The loop: observe, plan, store the status, act; woken by news and by the plan's own clock."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from lmj_api.clock import steady_time
from lmj_api.status import JobStatus, Phase
from lmj_operator.backend.flag import Flag
from lmj_operator.backend.port import ActionError, Backend, PodEvent
from lmj_operator.plan import Action, Plan, plan
from lmj_operator.plan.report.report import without_ages

SHORTEST_PASS_SECONDS = 0.05
"""News that comes closer together than this is looked at in one pass."""

URGENT_PASS_SECONDS = 0.005
"""The same while all ranks wait for the plan."""

ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED})


class Listener(Protocol):
    """Who is told what goes on (the terminal, a log)."""

    def heard(self, event: PodEvent) -> None:
        """Something happened in a pod."""
        ...

    def planned(self, before: JobStatus, plan: Plan) -> None:
        """A pass was planned, and its status is stored; ``before`` is the status before it."""
        ...

    def trouble(self, action: Action, reason: str) -> None:
        """An action could not be carried out; the next pass decides again."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """What is kept of a plan. Its calls may take long, and of thousands of jobs: so not the status, nor what it was planned from."""

    phase: Phase
    news: int
    """Hash of all that is news in the status."""
    acts: bool
    wake_after: float | None
    due_after: float | None
    urgent: bool

    @classmethod
    def of(cls, made: Plan) -> "Pass":
        """What is kept of ``made``."""
        news = hash(without_ages(made.status).model_dump_json())
        return cls(made.status.phase, news, bool(made.actions), made.wake_after, made.due_after, made.urgent)


def at_rest(made: Pass) -> bool:
    """The job ended or is suspended, and nothing is left to do."""
    return made.phase in ENDED and not made.acts and made.wake_after is None


@dataclass(frozen=True, slots=True)
class _Planned:
    """A pass that is to be carried out."""

    made: Pass
    actions: tuple[Action, ...]
    stored: Awaitable[None] | None
    """Stores the status; None: it is as it was."""
    tell: Callable[[], None]


class Reconciler:
    """Reconciles one job on one backend."""

    def __init__(
        self,
        backend: Backend,
        listener: Listener,
        clock: Callable[[], float] = steady_time,
        rest_seconds: float | None = None,
        start_seconds: float = SHORTEST_PASS_SECONDS,
    ) -> None:
        """``rest_seconds``: the backend reports every change, so passes that find none get twice as far apart, up to this.

        ``start_seconds``: as SHORTEST_PASS_SECONDS, until the job runs for the first time.
        """
        self._backend = backend
        self._listener = listener
        self._clock = clock
        self._rest_seconds = rest_seconds
        self._start_seconds = start_seconds
        self._quiet = 0
        self._before: int | None = None
        self._news = Flag()

    def wake(self) -> None:
        """Make a pass soon."""
        self._news.set()

    async def run(self, until: Callable[[Pass], bool] = at_rest) -> None:
        """Make passes until ``until`` holds."""
        hearing = asyncio.create_task(self._hear())
        try:
            while True:
                self._news.clear()
                made = await self.step()
                if until(made):
                    return
                seconds = self._pace(made)
                shortest = self._start_seconds if made.phase is Phase.PENDING else SHORTEST_PASS_SECONDS
                await asyncio.sleep(URGENT_PASS_SECONDS if made.urgent else shortest)
                if hearing.done():
                    hearing.result()
                await self._pause(seconds)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def step(self) -> Pass:
        """One pass."""
        planned = await self._planned()
        # First what must not be forgotten, then what cannot be taken back.
        if planned.stored is not None:
            await planned.stored
        planned.tell()
        await asyncio.gather(*(self._act(action) for action in planned.actions))
        return planned.made

    async def _planned(self) -> _Planned:
        """What is to be done. What was observed may be large, and calls take long: it is not kept for them."""
        async with self.looking():
            observed = await self._backend.observe()
            await self.turn()
            made = plan(observed, self._clock())
            kept, tell = self.kept(made), self.telling(observed.status, made)
            stored = self._backend.write_status(made.status) if made.status != observed.status else None
            return _Planned(kept, made.actions, stored, tell)

    def looking(self) -> AbstractAsyncContextManager[None]:
        """Where others look too, has one wait for one's turn to have what is observed in memory."""
        return nullcontext()

    async def turn(self) -> None:
        """Wait for one's turn to compute what is to be done, where others have theirs too."""

    def kept(self, made: Plan) -> Pass:
        """What is kept of it."""
        return Pass.of(made)

    def telling(self, before: JobStatus, made: Plan) -> Callable[[], None]:
        """Tells the listener of it."""
        return partial(self._listener.planned, before, made)

    def _pace(self, made: Pass) -> float | None:
        """Seconds until the next pass when nothing is heard; None: for ever."""
        self._quiet = self._quiet + 1 if made.news == self._before and not made.acts else 0
        self._before = made.news
        if made.wake_after is None or self._rest_seconds is None:
            return made.wake_after
        longest = self._rest_seconds if made.due_after is None else min(self._rest_seconds, max(made.due_after, 0.0))
        return float(min(made.wake_after * 2.0 ** min(self._quiet, 16), longest))

    async def _act(self, action: Action) -> None:
        try:
            await self._backend.apply(action)
        except ActionError as error:
            self._listener.trouble(action, str(error))

    async def _pause(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return

    async def _hear(self) -> None:
        async for event in self._backend.events():
            self._listener.heard(event)
            self._news.set()
