"""The canaries of one job's pods: whether the network keeps the operator from where the job's NetworkPolicy does not let it.

Beside the passes, which only ask what is known: each knock takes its turn among those of all jobs.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from lmj_api.canary import PORT
from lmj_api.protocol import AgentState
from lmj_operator.backend.agent_client import AgentError
from lmj_operator.backend.kubernetes.knock import Answer, knock
from lmj_operator.backend.turns import Turns

log = logging.getLogger(__name__)

AT_ONCE, OF_ONE = 128, 32
"""Knocks at the same time, by all jobs and by one."""
SETTLE_SECONDS = 10.0
"""A network may enforce a policy a little after a pod was made. Whoever is reached meanwhile is knocked at again before that counts."""
AGAIN_SECONDS = 1.0
"""How soon."""
SOON_SECONDS = 30.0
"""Between knocks where the policy is not enforced, or nobody knows: somebody may be about to mend it."""
REST_SECONDS = 600.0
"""Where it is."""


def turns_to_knock() -> Turns:
    """For all jobs."""
    return Turns(AT_ONCE, OF_ONE)


@dataclass(frozen=True, slots=True)
class Door:
    """A canary that listens, as its agent said."""

    key: str
    """Tells agents apart, by more than their pods' names."""
    pod: str
    host: str
    """The pod's IP address."""
    ask: Callable[[], Awaitable[AgentState]]
    """Has the agent say how it is. Raises AgentError."""
    awaited: bool
    """Something waits until it is known that the policy is enforced."""


@dataclass(slots=True)
class _Known:
    since: float
    """When it was first to be knocked at, on the monotonic clock."""
    due: float
    """When it is next."""
    enforced: bool | None = None
    under_way: bool = False


class Canaries:
    """Remembers what came of the last knock at each that told anything."""

    def __init__(
        self, turns: Turns, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic, port: int = PORT
    ) -> None:
        """``turns``: those of all jobs. ``tell``: hears of a pod of which something is known that matters."""
        self._turns, self._tell, self._clock, self._port = turns, tell, clock, port
        self._known: dict[str, _Known] = {}
        self._waiting: list[Door] = []
        self._visitors: set[asyncio.Task[None]] = set()

    def enforced(self, key: str) -> bool | None:
        """Whether the policy is enforced for the pod; None: that is not known."""
        known = self._known.get(key)
        return known.enforced if known is not None else None

    def is_due(self, key: str) -> bool:
        """Whether it is to be knocked at now."""
        known = self._known.get(key)
        return known is None or (not known.under_way and self._clock() >= known.due)

    def visit(self, door: Door) -> None:
        """Knock at ``door`` when its turn has come; nobody waits for it."""
        now = self._clock()
        known = self._known.setdefault(door.key, _Known(now, now))
        known.under_way = True
        self._waiting.append(door)
        if len(self._visitors) < OF_ONE:
            visitor = asyncio.create_task(self._go())
            self._visitors.add(visitor)
            visitor.add_done_callback(self._visitors.discard)

    def keep(self, keys: set[str]) -> None:
        """Forget all others."""
        for key in self._known.keys() - keys:
            del self._known[key]

    async def close(self) -> None:
        """Knock no more."""
        visitors = list(self._visitors)
        for visitor in visitors:
            visitor.cancel()
        await asyncio.gather(*visitors, return_exceptions=True)

    async def _go(self) -> None:
        while self._waiting:
            door = self._waiting.pop(0)
            known = self._known.get(door.key)
            if known is None:
                continue  # its pod went meanwhile
            try:
                await self._visit(door, known)
            except Exception:  # the others are knocked at all the same
                log.exception("the canary of %s was not knocked at", door.pod)

    async def _visit(self, door: Door, known: _Known) -> None:
        before = known.enforced
        verdict: bool | None = None
        try:
            verdict = await self._found(door)
            while verdict is False and (left := known.since + SETTLE_SECONDS - self._clock()) > 0:
                await asyncio.sleep(min(left, AGAIN_SECONDS))
                verdict = await self._found(door)
        finally:
            known.under_way = False
            known.due = self._clock() + (REST_SECONDS if verdict else SOON_SECONDS)
        # A knock that came to nothing does not take back what one before it showed.
        known.enforced = before if verdict is None else verdict
        if known.enforced is not before and (door.awaited or before is False or known.enforced is False):
            self._tell(door.pod)

    async def _found(self, door: Door) -> bool | None:
        """Whether the policy is enforced, by one knock; None: that cannot be said.

        Where no connection comes about the agent itself is asked: a pod that nobody can reach, or whose canary is not there, shows nothing.
        """
        async with self._turns.taken():
            answer = await knock(door.host, self._port)
            if answer is Answer.LINE:
                return False
            if answer is Answer.UNCLEAR:
                return None
            try:
                state = await door.ask()
            except AgentError:
                return None
            return True if state.canary else None
