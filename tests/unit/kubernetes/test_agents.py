"""Agents are asked when there may be news, and not when there is none."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Callable

import pytest
from counted_turns import CountedTurns
from planned import view_of_one

from lmj_api.bounds import LARGEST
from lmj_api.fold import fold
from lmj_api.protocol import (
    AgentState,
    CheckpointInfo,
    CheckpointTrouble,
    Copied,
    Event,
    EventKind,
    Holding,
    Progress,
    WorkerPhase,
    WorkerState,
)
from lmj_operator.backend.agent_client import AgentError, AnswerError, MachineError
from lmj_operator.backend.budget import Budget
from lmj_operator.backend.kubernetes import agents as module
from lmj_operator.backend.kubernetes.agents import (
    MOST_NEWS,
    Agents,
    News,
    _Known,
    _Urgency,
    said_already,
    with_event,
)
from lmj_operator.backend.kubernetes.packed import LONG
from lmj_operator.backend.port import PodEvent

pytestmark = pytest.mark.integration

DELAY = 0.05
READY = WorkerState(incarnation=1, phase=WorkerPhase.READY, address="a:1")
RUNNING = WorkerState(incarnation=1, phase=WorkerPhase.RUNNING, address="a:1", view=3)


def at_step(step: int) -> Progress:
    return Progress(step=step, steps=10, epoch=0.0)


class Client:
    """One agent, in memory."""

    def __init__(self) -> None:
        self.asked = 0
        self.sent: asyncio.Queue[Event | None] = asyncio.Queue()
        self.answer = AgentState(pod="p", rank=0, started=0.0, scanned=True, worker=RUNNING)
        self.meanwhile: Callable[[], object] = lambda: None
        self.down = False
        self.dark = False

    async def state(self) -> AgentState:
        self.asked += 1
        self.meanwhile()
        await asyncio.sleep(0.01)
        if self.dark:
            raise MachineError("dark")
        if self.down:
            raise AgentError("down")
        return self.answer

    async def events(self, after: int, opened: Callable[[], None]) -> AsyncIterator[Event]:
        if self.down:
            raise AgentError("down")
        opened()
        while (event := await self.sent.get()) is not None:
            yield event
        raise AgentError("cut")

    def happens(self, kind: EventKind, seq: int = 1, view: int | None = None) -> None:
        self.sent.put_nowait(Event(seq=seq, time=0.0, kind=kind, view=view))


class Fixture:
    def __init__(self) -> None:
        self.agents = Agents(DELAY)
        self.clients = [Client(), Client()]

    async def look(self) -> list[AgentState | None]:
        """At both, as a pass does."""
        return [
            await self.agents.recent(f"key-{n}") or await self.agents.state(f"key-{n}", f"p{n}", n, client)  # type: ignore[arg-type]
            for n, client in enumerate(self.clients)
        ]

    async def news(self, seconds: float = 5.0) -> EventKind | None:
        async with asyncio.timeout(seconds):
            told = await self.agents.news.get()
        assert told is not None
        return told.event.kind if told.event is not None else None

    @property
    def asked(self) -> list[int]:
        return [client.asked for client in self.clients]


@pytest.fixture
async def at(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fixture]:
    monkeypatch.setattr(module, "RECONNECT_SECONDS", 0.01)
    made = Fixture()
    await made.look()
    await made.look()
    assert made.asked == [1, 1]
    assert made.agents.news.empty()  # what it tells it tells from its start
    yield made
    await made.agents.close()


async def test_an_agent_that_tells_of_nothing_is_believed_for_a_while(at: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await at.look() == [client.answer for client in at.clients]
    assert at.asked == [1, 1]
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    await at.look()
    assert at.asked == [2, 2]


async def test_an_agent_that_looks_through_its_checkpoints_is_asked_soon_again(
    at: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCAN_SECONDS", 0.0)
    at.clients[0].answer = at.clients[0].answer.model_copy(update={"scanned": False})
    at.agents.keep({"key-1"})
    await at.look()
    await at.look()
    assert at.asked == [3, 1]


async def test_the_one_that_has_news_is_asked(at: Fixture) -> None:
    at.clients[0].happens(EventKind.READY)
    assert await at.news() is EventKind.READY
    await at.look()
    assert at.asked == [2, 1]


@pytest.mark.parametrize("kind", [EventKind.LOST_PEER, EventKind.WORKER_EXITED])
async def test_all_are_asked_when_something_happened_to_one(at: Fixture, kind: EventKind) -> None:
    at.clients[0].happens(kind)
    assert await at.news() is kind
    await at.look()
    assert at.asked == [2, 2]


async def test_steps_are_told_together_and_a_little_later(at: Fixture) -> None:
    begin = time.monotonic()
    for seq in range(1, 9):
        at.clients[seq % 2].happens(EventKind.COMMITTED, seq)
    assert await at.news() is EventKind.COMMITTED
    assert time.monotonic() - begin > 0.8 * DELAY
    assert at.agents.news.empty()
    await at.look()
    assert at.asked == [2, 2]


async def test_who_has_urgent_news_without_end_is_told_of_a_little_later(at: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for known in at.agents._known.values():
        known.urgent = Budget(3, module.URGENT_SECONDS)
    for seq in range(1, 101):
        at.clients[0].happens(EventKind.LOST_PEER, seq)
    begin = time.monotonic()
    assert [await at.news() for _ in range(4)] == [EventKind.LOST_PEER] * 4
    assert time.monotonic() - begin > 0.8 * DELAY
    assert at.agents.news.empty()
    at.clients[1].happens(EventKind.LOST_PEER)
    begin = time.monotonic()
    assert await at.news() is EventKind.LOST_PEER
    assert time.monotonic() - begin < 0.8 * DELAY, "another has its own"


async def test_what_was_said_already_is_no_news(at: Fixture) -> None:
    at.clients[0].happens(EventKind.JOINED, view=3)
    at.clients[0].happens(EventKind.JOINED, 2, view=4)
    assert await at.news() is EventKind.JOINED
    assert at.agents.news.empty()


async def test_a_cut_stream_is_news_and_the_agent_is_asked_until_it_is_heard_again(at: Fixture) -> None:
    at.clients[0].down = True
    at.clients[0].sent.put_nowait(None)
    assert await at.news() is None
    assert (await at.look())[0] is None
    assert (await at.look())[0] is None
    at.clients[0].down = False
    while (await at.look())[0] is None:
        assert await at.news() is None


async def test_an_answer_from_before_the_news_is_not_believed_after_it(at: Fixture) -> None:
    client = at.clients[0]
    client.happens(EventKind.DRAINED)
    assert await at.news() is EventKind.DRAINED
    client.meanwhile = lambda: client.happens(EventKind.COMPLETED, 2)
    await at.look()
    client.meanwhile = lambda: None
    await at.look()
    assert client.asked == 3


async def test_what_an_agent_says_when_it_is_told_something_is_known(at: Fixture) -> None:
    async def refuse(_: object) -> AgentState:
        raise AgentError("no")

    async def accept(_: object) -> AgentState:
        return at.clients[0].answer.model_copy(update={"draining": True})

    with pytest.raises(AgentError):
        await at.agents.tell("key-0", at.clients[0], refuse)  # type: ignore[arg-type]
    await at.look()
    assert at.asked == [2, 1]
    await at.agents.tell("key-0", at.clients[0], accept)  # type: ignore[arg-type]
    told = (await at.look())[0]
    assert told is not None
    assert told.draining  # it said so when it was told
    assert at.asked == [2, 1]


async def test_a_pod_that_is_gone_is_forgotten(at: Fixture) -> None:
    at.agents.keep({"key-1"})
    await at.look()
    assert at.asked == [2, 1]


@pytest.mark.parametrize(
    ("event", "known"),
    [
        (Event(time=0, kind=EventKind.WORKER_STARTED, incarnation=1), True),
        (Event(time=0, kind=EventKind.WORKER_STARTED, incarnation=2), False),
        (Event(time=0, kind=EventKind.JOINED, view=3), True),
        (Event(time=0, kind=EventKind.READY, address="a:1"), False),  # it left its view
        (Event(time=0, kind=EventKind.LOST_PEER, view=3), False),
        (Event(time=0, kind=EventKind.COMMITTED), False),
        (Event(time=10, kind=EventKind.COMMITTED, progress=at_step(5)), True),
        (Event(time=11, kind=EventKind.COMMITTED, progress=at_step(4)), True),
        (Event(time=11, kind=EventKind.COMMITTED, progress=at_step(6)), False),
        (Event(time=9, kind=EventKind.COMMITTED, progress=at_step(5)), False),  # of an earlier view
    ],
)
def test_what_a_state_has_in_it(event: Event, known: bool) -> None:
    worker = RUNNING.model_copy(update={"since": 10.0, "progress": at_step(5)})
    assert said_already(AgentState(pod="p", rank=0, started=0.0, worker=worker), event) is known


VIEW = view_of_one(3, reason="first")
STARTING = AgentState(
    pod="p", rank=0, started=0.0, scanned=True, worker=WorkerState(incarnation=2, phase=WorkerPhase.STARTING, since=10.0)
)


@pytest.mark.parametrize("told", [{"view": VIEW}, {"known_view": 3}], ids=["listed", "known"])
def test_what_comes_to_every_worker_is_known_from_its_events(told: dict[str, object]) -> None:
    ready = with_event(STARTING, Event(time=11, kind=EventKind.READY, address="a:2"))
    assert ready is not None
    worker = ready.worker
    assert (worker.phase, worker.address, worker.since, worker.heartbeat) == (WorkerPhase.READY, "a:2", 11, 11)
    joined = with_event(ready.model_copy(update=told), Event(time=12, kind=EventKind.JOINED, view=3, progress=at_step(4)))
    assert joined is not None
    assert (joined.worker.phase, joined.worker.view, joined.worker.progress) == (WorkerPhase.RUNNING, 3, at_step(4))
    further = with_event(joined, Event(time=13, kind=EventKind.COMMITTED, progress=at_step(5)))
    assert further is not None
    assert further.worker == joined.worker.model_copy(update={"progress": at_step(5), "heartbeat": 13})


@pytest.mark.parametrize(
    ("state", "event"),
    [
        # of the worker before this one
        (STARTING, Event(time=9, kind=EventKind.READY, address="a:1")),
        (STARTING, Event(time=11, kind=EventKind.READY)),
        # which checkpoints there are is to be asked
        (STARTING.model_copy(update={"scanned": False}), Event(time=11, kind=EventKind.READY, address="a:1")),
        # it was never told that view
        (AgentState(pod="p", rank=0, started=0.0, worker=READY), Event(time=11, kind=EventKind.JOINED, view=3)),
        # it left that view
        (
            AgentState(pod="p", rank=0, started=0.0, view=VIEW, worker=READY.model_copy(update={"view": 3})),
            Event(time=11, kind=EventKind.JOINED, view=3),
        ),
        (STARTING, Event(time=11, kind=EventKind.WORKER_EXITED, incarnation=2)),
        (STARTING, Event(time=11, kind=EventKind.COMMITTED, progress=at_step(1))),
        # what became of checkpoints is the agent's to say
        (STARTING, Event(time=11, kind=EventKind.WARNING, trouble=CheckpointTrouble(step=1, since=11, error="disk full"))),
    ],
)
def test_what_an_event_leaves_open_is_asked(state: AgentState, event: Event) -> None:
    assert with_event(state, event) is None


async def test_a_worker_that_tells_its_steps_is_not_asked_for_them(at: Fixture) -> None:
    for step in (1, 2):
        at.clients[0].sent.put_nowait(Event(seq=step, time=1.0, kind=EventKind.COMMITTED, progress=at_step(step)))
    assert await at.news() is EventKind.COMMITTED
    seen = (await at.look())[0]
    assert seen is not None
    assert seen.worker.progress == at_step(2)
    assert at.asked == [1, 1]


@pytest.mark.parametrize(
    ("before", "event"),
    [
        ({"phase": WorkerPhase.STARTING}, Event(time=12, kind=EventKind.READY, address="a:2")),
        (
            {"phase": WorkerPhase.STARTING},
            Event(time=12, kind=EventKind.READY, address="a:2", holding=Holding(step=7, prepared=True)),
        ),
        (
            {"phase": WorkerPhase.READY, "view": 2, "lost": "gone", "lost_rank": 1, "holding": Holding(step=7)},
            Event(time=12, kind=EventKind.JOINED, view=3, progress=at_step(7)),
        ),
        ({"phase": WorkerPhase.READY, "view": 2}, Event(time=12, kind=EventKind.JOINED, view=3)),
        ({"phase": WorkerPhase.RUNNING, "view": 3}, Event(time=12, kind=EventKind.COMMITTED, progress=at_step(8))),
        (
            {"phase": WorkerPhase.READY, "view": 2, "copied": Copied(done=5, size=5)},
            Event(time=12, kind=EventKind.JOINED, view=3, progress=at_step(7)),
        ),
        (
            {"phase": WorkerPhase.FOLLOWING, "copied": Copied(done=1, size=5)},
            Event(
                time=12,
                kind=EventKind.FOLLOWING,
                holding=Holding(step=7),
                copied=Copied(done=5, size=5, in_sync_step=7, digest="a"),
            ),
        ),
    ],
)
def test_what_is_made_of_an_event_is_what_the_agent_makes_of_it(before: dict[str, object], event: Event) -> None:
    """Two who fold the same events: a field that one of them forgot would be lost between them."""
    worker = WorkerState.model_validate({"incarnation": 2, "since": 11.0, "heartbeat": 11.0, "address": "a:2", **before})
    view = view_of_one(3, reason="test")
    state = AgentState(pod="p", rank=0, started=0.0, scanned=True, view=view, worker=worker)
    assert with_event(state, event) == fold(state, event, event.time)


async def test_how_far_a_copy_is_can_wait_and_the_first_step_of_a_view_cannot(at: Fixture) -> None:
    known = at.agents._known["key-0"]

    def hears(kind: EventKind, time: float, **details: object) -> _Urgency:
        return known.hears(Event.model_validate({"time": time, "kind": kind, **details}))

    known.says(AgentState(pod="p", rank=0, started=0.0, worker=READY.model_copy(update={"phase": WorkerPhase.FOLLOWING})))
    assert hears(EventKind.FOLLOWING, 2, copied=Copied(done=1, size=2)) is _Urgency.LATE
    assert hears(EventKind.FOLLOWING, 3, copied=Copied(done=2, size=2), holding=Holding(step=4)) is _Urgency.NOW
    assert hears(EventKind.FOLLOWING, 4, copied=Copied(done=2, size=2), holding=Holding(step=5)) is _Urgency.NOW
    known.says(AgentState(pod="p", rank=0, started=0.0, view=VIEW, worker=READY))
    assert hears(EventKind.JOINED, 5, view=3) is _Urgency.NOW
    assert hears(EventKind.COMMITTED, 6, progress=at_step(5)) is _Urgency.NOW
    assert hears(EventKind.COMMITTED, 7, progress=at_step(6)) is _Urgency.LATE
    # An answer said it before the event did.
    known.says(AgentState(pod="p", rank=0, started=0.0, view=VIEW, worker=RUNNING))
    assert hears(EventKind.JOINED, 8, view=3) is _Urgency.NONE
    assert hears(EventKind.COMMITTED, 9, progress=at_step(7)) is _Urgency.NOW
    known.says(AgentState(pod="p", rank=0, started=0.0, worker=READY))
    hears(EventKind.JOINED, 10, view=1)
    assert hears(EventKind.COMMITTED, 11, progress=at_step(1)) is _Urgency.LATE, "nobody waited for the first view"


async def test_a_standby_need_not_look_through_checkpoints_to_be_believed(at: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN_SECONDS", 0.0)
    at.clients[0].answer = AgentState(pod="p", started=0.0)
    await at.look()
    await asyncio.sleep(0.05)
    for _ in range(3):
        await at.look()
    assert at.clients[0].asked <= 2
    at.clients[0].happens(EventKind.WARM)
    await asyncio.sleep(0.05)
    at.clients[0].answer = AgentState(pod="p", started=0.0, warm=True)
    (told, _) = await at.look()
    assert told is not None
    assert told.warm


async def test_an_agent_whose_machine_is_not_there_is_not_waited_for_again_until_it_is_heard(at: Fixture) -> None:
    first, _ = at.clients
    first.dark = True
    for _ in range(3):
        at.agents._doubt_all()
        assert [state is None for state in await at.look()] == [True, False]
        assert (at.agents.is_dark("key-0"), at.agents.is_dark("key-1")) == (True, False)
    assert at.asked == [2, 4]
    first.dark = False
    first.happens(EventKind.READY)
    assert await at.news() is EventKind.READY
    assert not at.agents.is_dark("key-0")
    assert await at.look() == [client.answer for client in at.clients]


async def test_an_agent_whose_machine_was_not_there_is_asked_again_after_a_while(
    at: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DARK_SECONDS", 0.0)
    first, _ = at.clients
    first.dark = True
    at.agents._doubt_all()
    assert (await at.look())[0] is None
    first.dark = False
    assert (await at.look())[0] == first.answer


async def test_an_agent_that_is_slow_is_asked_each_time(at: Fixture) -> None:
    first, _ = at.clients
    first.down = True
    at.agents._doubt_all()
    for _ in range(2):
        assert (await at.look())[0] is None
        assert not at.agents.is_dark("key-0")
    assert at.asked[0] == 3


async def test_a_mistake_while_an_agent_is_heard_is_told_and_ends_nothing(
    at: Fixture, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(state: AgentState, event: Event) -> bool:
        raise ValueError("a mistake")

    known = at.agents._known["key-0"]
    listener = known.listener
    with monkeypatch.context() as broken:
        broken.setattr(module, "said_already", fails)
        at.clients[0].happens(EventKind.READY)
        await asyncio.wait([listener], timeout=5.0)
    assert listener.done()
    assert not known.heard
    await at.look()
    assert at.asked == [2, 1]  # nobody hears of its changes, so it is asked
    assert [record.getMessage() for record in caplog.records] == ["pod p0 was not listened to any more"]
    assert "a mistake" in caplog.text
    at.clients[0].happens(EventKind.READY)
    assert await at.news() is EventKind.READY  # it is heard again


async def test_an_agent_that_talks_nonsense_is_told_of_once(at: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    async def nonsense() -> AgentState:
        raise AnswerError("GET http://a/v1/state: not an agent's state: Invalid JSON")

    at.clients[0].state = nonsense  # type: ignore[method-assign]
    at.agents._doubt_all()
    for _ in range(3):
        first, second = await at.look()
        assert first is None
        assert second == at.clients[1].answer
    assert [record.getMessage() for record in caplog.records] == [
        "pod p0: GET http://a/v1/state: not an agent's state: Invalid JSON; it is not believed"
    ]


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "ready", "address": "a" * 255, "snapshots": {"own": [LARGEST] * 1000, "kept": []}},
        {
            "kind": "joined",
            "view": 3,
            "progress": {"step": LARGEST, "steps": 1, "epoch": 1e308, "loss": 1e308, "activity": "\0" * 2000},
        },
        {"kind": "committed", "progress": {"step": LARGEST, "steps": 1, "epoch": -1e308}},
        {"kind": "following", "holding": {"step": LARGEST}},
    ],
)
@pytest.mark.parametrize("phase", WorkerPhase)
def test_what_is_kept_of_an_event_can_be_read_again(event: dict[str, object], phase: WorkerPhase) -> None:
    heard = Event.model_validate_json(json.dumps({"seq": LARGEST, "time": 253_402_300_799, **event}))
    before = AgentState(pod="p", rank=0, started=0.0, scanned=True, view=VIEW, worker=WorkerState(incarnation=1, phase=phase))
    known = _Known(None)  # type: ignore[arg-type]
    known.says(before)
    known.hears(heard)
    kept = known.state
    assert kept == with_event(before, heard)


async def test_news_that_nobody_hears_are_bounded() -> None:
    news = News()
    for _ in range(3):
        for number in range(2 * MOST_NEWS):
            news.put(PodEvent("pod", number, None))
        heard = [await news.get() for _ in range(MOST_NEWS)]
        assert [event.rank for event in heard if event is not None] == list(range(MOST_NEWS))
        assert news.empty()


async def test_what_an_agent_says_at_length_is_kept_small_and_whole() -> None:
    names = [CheckpointInfo(name=f"step-{step:09d}", step=step, problem="no manifest " * 40) for step in range(1000)]
    long = AgentState(pod="p", rank=0, started=0.0, scanned=True, worker=RUNNING, checkpoints=names)
    short = long.model_copy(update={"checkpoints": names[:3]})
    known = _Known(asyncio.create_task(asyncio.sleep(0)))
    for state in (long, short):
        known.says(state)
        assert known.text is not None
        assert len(known.text) < LONG
        assert known.state == state
    await known.listener


async def test_of_what_agents_said_at_length_one_is_read_in_a_round_of_the_loop(
    at: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = CountedTurns(monkeypatch, module)
    names = [CheckpointInfo(name=f"step-{step:09d}", step=step, problem="no manifest " * 40) for step in range(1000)]
    at.clients[1].answer = at.clients[1].answer.model_copy(update={"checkpoints": names})
    assert not at.agents.say_much
    at.agents.keep({"key-0"})
    await at.look()
    assert (at.asked, turns.long) == ([1, 2], 0)
    assert at.agents.say_much
    await at.look()
    assert (at.asked, turns.long) == ([1, 2], 1), "that of one is short"
    at.clients[1].happens(EventKind.LOST_PEER, view=7)
    assert await at.news() is EventKind.LOST_PEER
    assert turns.long == 2


async def test_an_agent_that_is_forgotten_leaves_nothing_for_the_garbage_collector(
    at: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_RECONNECT_SECONDS", 1000.0)
    monkeypatch.setattr(module, "RECONNECT_SECONDS", 1000.0)
    for client in at.clients:
        client.happens(EventKind.WARNING)  # after one the next wait is the first again
        client.sent.put_nowait(None)
    await asyncio.sleep(0.05)  # the streams have ended, and are not opened again
    gc.collect()
    gc.disable()
    try:
        at.agents.keep(set())
        await asyncio.sleep(0.01)
        assert not [known for known in gc.get_objects() if type(known) is _Known]
    finally:
        gc.enable()
