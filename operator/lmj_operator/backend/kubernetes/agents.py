"""The agents of one job: listened to all the time, and asked only when there may be news."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from lmj_api.clock import steady_time
from lmj_api.fold import alive, fold
from lmj_api.protocol import AgentState, Event, EventKind, Progress, WorkerPhase, WorkerState
from lmj_operator.backend.agent_client import AgentClient, AgentError, AnswerError, MachineError
from lmj_operator.backend.ages import by_own_clock
from lmj_operator.backend.budget import Budget
from lmj_operator.backend.flag import Flag
from lmj_operator.backend.kubernetes.packed import is_packed, packed, unpacked
from lmj_operator.backend.port import PodEvent
from lmj_operator.backend.rounds import turn
from lmj_operator.backend.telling import Call

log = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
"""What an agent said is believed for so long, while it is listened to and reports nothing new: all that changes comes with an event."""

SCAN_SECONDS = 1.0
"""The same until it has looked through the checkpoints, because the end of that comes without an event."""

DARK_SECONDS = 5.0
"""An agent whose machine was not there is asked again after so long, or when it was heard: no other has to wait for it meanwhile."""

MOST_NEWS = 16
"""News that wait for one who listens: while the API server does not answer nobody may for minutes, and of a job at rest nobody does, while its
agents may tell without end."""

URGENT_AT_ONCE = 100
URGENT_SECONDS = 5.0
"""So much urgent news of one agent is told at once, and then one in so long; what is more waits as if it could."""

RECONNECT_SECONDS = 0.2
LONGEST_RECONNECT_SECONDS = 5.0

_CAN_WAIT = frozenset(
    {
        EventKind.WORKER_STARTED,
        EventKind.PREPARING,
        EventKind.COMMITTED,
        EventKind.EVALUATED,
        EventKind.CHECKPOINTED,
        EventKind.WARNING,
    }
)
"""News for the status alone: nothing is done about them. But with the first step of a view it is known what it cost to get there."""

_OF_OTHERS = frozenset({EventKind.LOST_PEER, EventKind.WORKER_EXITED})
"""What happened to one may have happened to more of them."""


class _Urgency(Enum):
    """How soon what was heard is told."""

    NONE = auto()
    """It is no news."""
    LATE = auto()
    """It can wait."""
    NOW = auto()


@dataclass(slots=True)
class _Known:
    """One agent, at one address."""

    listener: asyncio.Task[None]
    heard: bool = False
    """Its stream of events is open."""
    text: str | None = None
    """:attr:`state`, packed: text is a fifth of the objects, and there are thousands who say nothing for long. Of a thousand checkpoints, or a
    view of as many ranks, it may be half a million bytes, and all alike."""
    said: float = 0.0
    """When it was asked for that, on the monotonic clock,"""
    answered: float = 0.0
    """and when it answered."""
    asked: int = 0
    """Calls that it has not answered yet."""
    dark_until: float = 0.0
    """On the monotonic clock: till then its machine is taken not to be there."""
    doubts: int = 0
    """Times that there was news: an answer that was asked for before it is not kept."""
    complained: bool = False
    """It was told that what it says is nothing that an agent says."""
    urgent: Budget = field(default_factory=lambda: Budget(URGENT_AT_ONCE, URGENT_SECONDS))
    joined: bool = False
    """It has joined a view that followed another, and told of no step since."""

    @property
    def state(self) -> AgentState | None:
        """What it said last; None: it must be asked."""
        return None if self.text is None else AgentState.model_validate_json(unpacked(self.text))

    async def turn(self) -> None:
        """To be waited for before :attr:`state` is asked for: of those that are long one is parsed in a round of the loop."""
        if self.is_long:
            await turn(long=True)

    @property
    def is_long(self) -> bool:
        """What it said takes a megabyte when it is parsed, and the loop for long."""
        return self.text is not None and is_packed(self.text)

    def says(self, state: AgentState) -> None:
        """It has said this, or told it by an event."""
        self.text = packed(state.model_dump_json(exclude_defaults=True))

    def hears(self, event: Event) -> _Urgency:
        """Whether ``event`` is news; what is known then has it in it, or is in doubt."""
        before, first = self.state, False
        if event.kind is EventKind.JOINED:
            self.joined = (event.view or 0) > 1
        elif event.kind is EventKind.COMMITTED:
            first, self.joined = self.joined, False
        if before is not None and said_already(before, event):
            return _Urgency.NONE
        after = with_event(before, event) if before is not None else None
        if after is not None:
            self.says(after)
        else:
            self.doubt()
        if first:
            return _Urgency.NOW
        if event.kind is EventKind.FOLLOWING and before is not None and after is not None:
            # How far a copy is can wait, that it is complete cannot.
            return _Urgency.LATE if before.worker.holding == after.worker.holding else _Urgency.NOW
        return _Urgency.LATE if event.kind in _CAN_WAIT else _Urgency.NOW

    def doubt(self) -> None:
        """What it said may be out of date."""
        self.text = None
        self.doubts += 1


class News:
    """What is to be told, to one who listens. A queue of asyncio's is ten times as large when it is empty, which it is for long."""

    __slots__ = ("_changed", "_closed", "_told")

    def __init__(self) -> None:
        self._told: list[PodEvent] = []
        self._closed, self._changed = False, Flag()

    def put(self, event: PodEvent) -> None:
        """Tell ``event``. Where much waits already it is left out: who listens looks at everything then, and only a line of a log is missing."""
        if len(self._told) < MOST_NEWS:
            self._told.append(event)
        self._changed.set()

    def close(self) -> None:
        """Nothing more is told."""
        self._closed = True
        self._changed.set()

    def empty(self) -> bool:
        """Whether all was heard."""
        return not self._told

    async def get(self) -> PodEvent | None:
        """The next, when there is one; None: nothing more is told."""
        while not self._told:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._told.pop(0)


class Agents:
    """Keys tell pods apart, by more than their name: another pod of a name is another agent."""

    def __init__(self, delay: float, clock: Callable[[], float] = steady_time) -> None:
        """``delay``: seconds for which news that nothing is done about may wait for more of it. ``clock``: to which agents' times are put."""
        self.news = News()
        self._delay, self._clock = delay, clock
        self._known: dict[str, _Known] = {}
        self._waiting: asyncio.TimerHandle | None = None

    async def recent(self, key: str) -> AgentState | None:
        """What the agent said last, if it is listened to and that was not long ago; None: it is to be asked."""
        known = self._known.get(key)
        if known is not None:
            await known.turn()
        state = known.state if known is not None and known.heard and not self.is_dark(key) else None
        if known is None or state is None or time.monotonic() - known.said >= _believed(state):
            return None
        return by_own_clock(state, time.monotonic() - known.answered, self._clock())

    async def state(self, key: str, pod: str, rank: int | None, client: AgentClient) -> AgentState | None:
        """What the agent says when it is asked; None: it does not answer. It is listened to from now on."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known(asyncio.create_task(self._listen(key, pod, rank, client)))
        elif known.listener.done():
            # It goes on for ever, but for a mistake in it; that is told, and the pod is listened to again.
            why = None if known.listener.cancelled() else known.listener.exception()
            log.error("pod %s was not listened to any more", pod, exc_info=why)
            known.listener = asyncio.create_task(self._listen(key, pod, rank, client))
        if self.is_dark(key):
            return None
        try:
            return by_own_clock(await self._ask(known, client, lambda agent: agent.state()), 0.0, self._clock())
        except AgentError as error:
            _complain(known, pod, error)
            return None

    @property
    def say_much(self) -> bool:
        """Whether what one of them said is large."""
        return any(known.is_long for known in self._known.values())

    def is_dark(self, key: str) -> bool:
        """Whether the agent's machine took no connection when it was asked last, and that was just now."""
        known = self._known.get(key)
        return known is not None and time.monotonic() < known.dark_until

    async def tell(self, key: str, client: AgentClient, call: Call) -> None:
        """Tell the agent something; its answer is what it knows then. Raises AgentError."""
        known = self._known.get(key)
        if known is None:
            await call(client)
        else:
            await self._ask(known, client, call)

    def keep(self, keys: set[str]) -> None:
        """Forget all others."""
        for key in self._known.keys() - keys:
            self._known.pop(key).listener.cancel()

    async def close(self) -> None:
        """Listen to nobody any more."""
        listeners = [known.listener for known in self._known.values()]
        self.keep(set())
        await asyncio.gather(*listeners, return_exceptions=True)
        if self._waiting is not None:
            self._waiting.cancel()
        self.news.close()

    def _doubt_all(self) -> None:
        for known in self._known.values():
            known.doubt()

    async def _ask(self, known: _Known, client: AgentClient, question: Call) -> AgentState:
        known.text, known.said, doubts = None, time.monotonic(), known.doubts
        known.asked += 1
        try:
            state = await question(client)
        except MachineError:
            known.dark_until = time.monotonic() + DARK_SECONDS
            raise
        finally:
            known.asked -= 1
        known.answered = time.monotonic()
        if known.doubts == doubts:
            known.says(state)
        return state

    async def _listen(self, key: str, pod: str, rank: int | None, client: AgentClient) -> None:
        after, wait = 0, RECONNECT_SECONDS

        def opened() -> None:
            known = self._known[key]
            known.heard, known.dark_until = True, 0.0
            if known.text is None and not known.asked:
                # It did not answer when it was asked; from now on its events report everything, those of before too.
                self.news.put(PodEvent(pod, rank, None))

        while True:
            try:
                async for event in client.events(after, opened):
                    after, wait = max(after, event.seq), RECONNECT_SECONDS
                    await self._known[key].turn()
                    self._hear(key, PodEvent(pod, rank, event), event)
                    del event  # the next may be long in coming, and there are thousands who wait for theirs
            except AgentError as error:
                # The state says why, if it matters: the reconciler asks for it. Here only the news is taken up again.
                _complain(self._known[key], pod, error)
                self._doubt_all()
                self.news.put(PodEvent(pod, rank, None))
            finally:
                self._left(key)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_RECONNECT_SECONDS)

    def _left(self, key: str) -> None:
        """The stream of events that the current task listened to is over."""
        known = self._known.get(key)
        if known is not None and known.listener is asyncio.current_task():
            known.heard = False

    def _hear(self, key: str, told: PodEvent, event: Event) -> None:
        known = self._known[key]
        known.dark_until = 0.0
        urgency = known.hears(event)
        if urgency is _Urgency.NONE:
            return
        if event.kind in _OF_OTHERS:
            self._doubt_all()
        if urgency is _Urgency.NOW and known.urgent.take(time.monotonic()):
            self.news.put(told)
        elif self._waiting is None:
            self._waiting = asyncio.get_running_loop().call_later(self._delay, self._tell_late, told)

    def _tell_late(self, told: PodEvent) -> None:
        self._waiting = None
        self.news.put(told)


def _complain(known: _Known, pod: str, error: AgentError) -> None:
    """Say once of an agent that it answers what no agent does: it counts as one that does not answer, and somebody will ask why."""
    if isinstance(error, AnswerError) and not known.complained:
        known.complained = True
        log.warning("pod %s: %s; it is not believed", pod, error)


def _believed(state: AgentState) -> float:
    """Seconds; a standby looks through the checkpoints only when it has become a rank, and is asked then."""
    return FRESH_SECONDS if state.scanned or state.rank is None else SCAN_SECONDS


def said_already(state: AgentState, event: Event) -> bool:
    """Whether ``state``, which the agent answered before its ``event`` was heard, has it in it."""
    worker = state.worker
    match event.kind:
        case EventKind.WORKER_STARTED:
            return event.incarnation is not None and worker.incarnation >= event.incarnation
        case EventKind.READY:
            return worker.phase is WorkerPhase.READY and worker.address == event.address
        case EventKind.JOINED:
            return worker.phase is WorkerPhase.RUNNING and worker.view == event.view
        case EventKind.COMMITTED:
            running = worker.phase is WorkerPhase.RUNNING and event.time >= worker.since
            return running and event.progress is not None and not _further(worker, event.progress)
        case _:
            return False


def with_event(state: AgentState, event: Event) -> AgentState | None:
    """``state`` after ``event``, as its agent has it now; None: what it has now can only be asked for.

    An event may be older than ``state``, and of a worker that is gone by now. So one is taken that is all that can have happened
    since, of those that come to every worker: each call that is spared is a third of what a job costs while it starts and trains.
    """
    worker = state.worker
    if event.time < worker.since or not _is_next(state, event):
        return None
    after = fold(state, event, event.time)
    # An answer may be younger than an event that came after it.
    seen = {"heartbeat": max(worker.heartbeat, event.time)}
    return after.model_copy(update={"worker": after.worker.model_copy(update=seen)})


def _is_next(state: AgentState, event: Event) -> bool:
    worker = state.worker
    match event.kind, worker.phase:
        # The scan of the checkpoints ends without an event, and who is ready is asked for them next.
        case EventKind.READY, WorkerPhase.STARTING:
            return alive(worker) and event.address is not None and state.scanned
        case EventKind.JOINED, WorkerPhase.READY:
            return alive(worker) and state.newest_view == event.view and (event.view or 0) > worker.view
        case EventKind.FOLLOWING, WorkerPhase.FOLLOWING:
            return alive(worker)
        case EventKind.COMMITTED, WorkerPhase.RUNNING:
            return alive(worker) and event.progress is not None and _further(worker, event.progress)
        case _:
            return False


def _further(worker: WorkerState, progress: Progress) -> bool:
    return worker.progress is None or progress.step > worker.progress.step
