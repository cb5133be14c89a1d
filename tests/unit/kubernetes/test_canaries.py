"""The canaries of a job: how often they are knocked at, what is believed, and that no pass waits for it."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from backend_fixture import Clock, Fixture
from cluster_jobs import running

from lmj_api.canary import PORT
from lmj_api.protocol import AgentState
from lmj_api.spec import Network, PolicyMode
from lmj_operator.backend.agent_client import AgentError
from lmj_operator.backend.kubernetes import canaries as module
from lmj_operator.backend.kubernetes.canaries import (
    AT_ONCE,
    OF_ONE,
    REST_SECONDS,
    SETTLE_SECONDS,
    SOON_SECONDS,
    Canaries,
    Door,
    turns_to_knock,
)
from lmj_operator.backend.kubernetes.knock import Answer
from lmj_operator.backend.turns import Turns
from lmj_operator.plan import CreatePod

pytestmark = pytest.mark.integration

LISTENS = AgentState(pod="p", rank=0, started=1.0, canary=True)
SECONDS = 10.0


class World:
    """Pods, what becomes of a knock at each, and what its agent says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, turns: Turns | None = None) -> None:
        self.clock, self.told = Clock(), list[str]()
        self.canaries = Canaries(turns or turns_to_knock(), self.told.append, self.clock)
        self.answer = Answer.NOTHING
        self.state: AgentState | None = LISTENS
        self.knocked: list[str] = []
        self.held = self.most = 0
        self.open = asyncio.Event()
        """Knocks come to an end."""
        self.open.set()
        self.passes: Callable[[], None] = lambda: None
        """Happens while somebody waits to knock again."""
        monkeypatch.setattr(module, "knock", self._knock)
        self._turn = asyncio.sleep
        monkeypatch.setattr("asyncio.sleep", self._sleep)

    async def _knock(self, host: str, port: int) -> Answer:
        assert port == PORT
        self.knocked.append(host)
        self.held += 1
        self.most = max(self.most, self.held)
        await self.open.wait()
        self.held -= 1
        return self.answer

    async def _sleep(self, seconds: float) -> None:
        self.clock.now += seconds
        self.passes()
        await self._turn(0)

    async def ask(self) -> AgentState:
        if self.state is None:
            raise AgentError("no answer")
        return self.state

    def visit(self, *hosts: str, awaited: bool = False) -> None:
        """As passes do: at those that are due."""
        for host in hosts:
            if self.canaries.is_due(host):
                self.canaries.visit(Door(host, f"pod-{host}", host, self.ask, awaited))

    async def settled(self) -> None:
        async with asyncio.timeout(SECONDS):
            while self.canaries._visitors:
                await asyncio.gather(*self.canaries._visitors)

    async def found(self, host: str = "a", *, awaited: bool = False) -> bool | None:
        self.visit(host, awaited=awaited)
        await self.settled()
        return self.canaries.enforced(host)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_nothing_is_known_of_one_that_was_not_knocked_at(world: World) -> None:
    assert world.canaries.enforced("a") is None
    world.open.clear()
    world.visit("a")
    await asyncio.sleep(0)
    assert world.canaries.enforced("a") is None, "and no pass waits until it is"
    await world.canaries.close()


async def test_who_is_kept_out_of_a_pod_that_answers_knows_that_the_policy_is_enforced(world: World) -> None:
    assert await world.found() is True
    assert world.told == [], "nothing waits for that"
    assert await world.found("b", awaited=True) is True
    assert world.told == ["pod-b"]


@pytest.mark.parametrize("state", [None, LISTENS.model_copy(update={"canary": False})])
async def test_a_pod_that_does_not_answer_or_listens_no_more_shows_nothing(world: World, state: AgentState | None) -> None:
    world.state = state
    assert await world.found(awaited=True) is None
    assert world.told == []


async def test_one_that_is_reached_counts_when_the_network_has_had_its_time(world: World) -> None:
    world.answer = Answer.LINE
    begin = world.clock.now
    assert await world.found() is False
    assert world.clock.now - begin == SETTLE_SECONDS
    assert len(world.knocked) == SETTLE_SECONDS + 1
    assert world.told == ["pod-a"]


async def test_a_policy_that_holds_a_little_later_holds(world: World) -> None:
    world.answer = Answer.LINE

    def holds() -> None:
        world.answer = Answer.NOTHING

    world.passes = holds
    assert await world.found() is True
    assert (len(world.knocked), world.told) == (2, [])


async def test_one_that_was_long_there_needs_no_time(world: World) -> None:
    assert await world.found() is True
    world.clock.now += REST_SECONDS
    world.answer = Answer.LINE
    assert await world.found() is False
    assert len(world.knocked) == 2


async def test_each_is_knocked_at_rarely_and_sooner_where_it_matters(world: World) -> None:
    assert await world.found() is True
    world.clock.now += REST_SECONDS - 1
    await world.found()
    assert len(world.knocked) == 1
    world.clock.now += 1
    world.answer = Answer.LINE
    assert await world.found() is False
    world.clock.now += SOON_SECONDS - 1
    await world.found()
    assert len(world.knocked) == 2
    world.clock.now += 1
    world.answer = Answer.NOTHING
    assert await world.found() is True, "somebody has mended it"
    assert world.told == ["pod-a", "pod-a"]


@pytest.mark.parametrize("before", [Answer.NOTHING, Answer.LINE])
async def test_a_knock_that_came_to_nothing_takes_nothing_back(world: World, before: Answer) -> None:
    world.answer = before
    known = await world.found()
    world.clock.now += REST_SECONDS
    told = list(world.told)
    world.answer = Answer.UNCLEAR
    assert await world.found() is known
    assert world.told == told
    assert not world.canaries.is_due("a")
    world.clock.now += SOON_SECONDS
    assert world.canaries.is_due("a"), "it is not known any more that it holds"


async def test_a_pod_is_visited_once_at_a_time(world: World) -> None:
    world.open.clear()
    for _ in range(3):
        world.visit("a")
        await asyncio.sleep(0)
    world.open.set()
    await world.settled()
    assert world.knocked == ["a"]


async def test_one_job_knocks_at_some_of_its_pods_at_a_time_and_in_the_end_at_all(world: World) -> None:
    hosts = [str(number) for number in range(5 * OF_ONE)]
    world.open.clear()
    world.visit(*hosts)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(world.canaries._visitors) == world.held == OF_ONE
    world.open.set()
    await world.settled()
    assert (sorted(world.knocked), world.most) == (sorted(hosts), OF_ONE)
    assert all(world.canaries.enforced(host) for host in hosts)


async def test_all_jobs_share_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OF_ONE < AT_ONCE
    world = World(monkeypatch, Turns(2, 2))
    world.open.clear()
    world.visit(*"abcdef")
    for _ in range(10):
        await asyncio.sleep(0)
    assert world.held == 2
    world.open.set()
    await world.settled()
    assert world.most == 2


async def test_what_goes_wrong_at_one_is_told_and_the_others_are_knocked_at(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(host: str, _: int) -> Answer:
        if host == "a":
            raise ValueError("a mistake")
        return Answer.NOTHING

    monkeypatch.setattr(module, "OF_ONE", 1)
    monkeypatch.setattr(module, "knock", breaks)
    world.visit("a", "b")
    await world.settled()
    assert (world.canaries.enforced("a"), world.canaries.enforced("b")) == (None, True)
    assert "the canary of pod-a was not knocked at" in caplog.text
    world.clock.now += SOON_SECONDS
    assert world.canaries.is_due("a")


async def test_a_pod_that_is_gone_is_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OF_ONE", 1)
    assert await world.found() is True
    world.open.clear()
    world.visit("b", "c")
    await asyncio.sleep(0)
    world.canaries.keep({"b"})
    world.open.set()
    await world.settled()
    assert world.knocked == ["a", "b"]
    assert [world.canaries.enforced(host) for host in "abc"] == [None, True, None]


# In the backend.


async def observed(at: Fixture) -> list[bool | None]:
    """Of the pod, in the passes until what is known of it does not change."""
    found: list[bool | None] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < 2 or found[-1] is None:
            (pod,) = (await at.backend.observe()).pods
            found.append(pod.enforced)
            await asyncio.gather(*at.backend._canaries._visitors)
    return found


async def begun(at: Fixture, monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[tuple[str, int]]:
    knocked: list[tuple[str, int]] = []

    async def knock(host: str, port: int) -> Answer:
        knocked.append((host, port))
        return answer

    monkeypatch.setattr(module, "knock", knock)
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    await at.backend.apply(CreatePod(0, 1))
    at.cache.put_pod(running())
    return knocked


@pytest.mark.parametrize(("answer", "enforced"), [(Answer.NOTHING, True), (Answer.LINE, False)])
async def test_a_pod_is_seen_with_what_its_canary_showed(
    at: Fixture, monkeypatch: pytest.MonkeyPatch, answer: Answer, enforced: bool
) -> None:
    knocked = await begun(at, monkeypatch, answer)
    at.state = at.state.model_copy(update={"canary": True})
    assert await observed(at) == [None, enforced]
    assert knocked == [("127.0.0.1", PORT)]
    seen = await at.backend.observe()
    assert seen.networked
    assert len(knocked) == 1


async def test_a_pod_without_a_canary_is_not_knocked_at(at: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    knocked = await begun(at, monkeypatch, Answer.LINE)
    for _ in range(3):
        (pod,) = (await at.backend.observe()).pods
        assert pod.enforced is None
    assert knocked == []


@pytest.mark.parametrize(
    ("policy", "answer", "told"),
    [
        (PolicyMode.PREFERRED, Answer.NOTHING, False),
        (PolicyMode.REQUIRED, Answer.NOTHING, True),
        (PolicyMode.PREFERRED, Answer.LINE, True),
    ],
)
async def test_a_pass_is_made_for_it_where_it_matters(
    at: Fixture, monkeypatch: pytest.MonkeyPatch, policy: PolicyMode, answer: Answer, told: bool
) -> None:
    await begun(at, monkeypatch, answer)
    at.state = at.state.model_copy(update={"canary": True})
    spec = at.backend.job.spec.model_copy(update={"network": Network(policy=policy)})
    at.backend.job = at.backend.job.model_copy(update={"spec": spec})
    heard = at.backend.events()
    await observed(at)
    pods = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            while True:
                event = await anext(heard)
                pods += [event.pod] if event.event is None and event.rank is None else []
    assert pods == ["tiny-r0-1"] * told
