"""Jobs share calls, starts and events: one that wants many of them waits behind one that wants one."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from cluster_jobs import SETTINGS, MemoryApi, cluster_job, job, job_body
from served import served

from lmj_operator.backend.kubernetes.api import CALLS_OF_ONE, LARGE_AT_ONCE
from lmj_operator.backend.kubernetes.build.kept_template import with_kept_template
from lmj_operator.backend.kubernetes.cache import Cache
from lmj_operator.backend.kubernetes.children import Children
from lmj_operator.backend.kubernetes.creation import POD_SECONDS, PODS_BESIDES, PODS_OF_A_RANK, Creation
from lmj_operator.backend.kubernetes.packed import LONG, packed
from lmj_operator.backend.kubernetes.resources import PODS, Resource
from lmj_operator.backend.rounds import ROUNDS, SECONDS, Rounds
from lmj_operator.backend.turns import CREDIT, JOB, Key, Turns
from lmj_operator.controller import notes as notes_module
from lmj_operator.controller.notes import NOTE_SECONDS, NOTES_AT_ONCE, Note, Notebook
from lmj_operator.plan import CreatePod

LOUD, LOUD_TOO, QUIET = ("a", "loud"), ("a", "loud-too"), ("b", "quiet")


async def of(key: Key, work: Callable[[], Awaitable[object]]) -> None:
    JOB.set(key)
    await work()


class World:
    """Who had a turn, one after another; a turn is over when ``done`` says so."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.had, self.held = turns, list[Key](), 0
        self.most = 0
        self._over = asyncio.Semaphore(0)
        self.tasks: list[asyncio.Task[None]] = []

    def want(self, key: Key, times: int = 1) -> None:
        self.tasks += [asyncio.create_task(of(key, self._work)) for _ in range(times)]

    async def done(self, times: int = 1) -> None:
        for _ in range(times):
            self._over.release()
            for _ in range(10):
                await asyncio.sleep(0)

    async def _work(self) -> None:
        async with self.turns.taken():
            self.had.append(JOB.get())
            self.held += 1
            self.most = max(self.most, self.held)
            await self._over.acquire()
            self.held -= 1


async def test_one_that_wants_one_is_next_however_many_another_wants() -> None:
    world = World(Turns(2, 2))
    world.want(LOUD, 100)
    await asyncio.sleep(0)
    world.want(LOUD_TOO, 100)
    world.want(QUIET, 2)
    await asyncio.sleep(0)
    await world.done(4)
    # The other namespace is next, for it had none; the jobs of the first take its turns by turns.
    assert world.had == [LOUD, LOUD, QUIET, QUIET, LOUD, LOUD_TOO]
    await world.done(300)
    assert (len(world.had), world.most, world.held) == (202, 2, 0)
    assert {task.done() for task in world.tasks} == {True}


async def test_a_namespace_that_had_few_turns_is_next_however_many_others_wait() -> None:
    world = World(Turns(1, 1))
    loud = [(f"loud-{number}", "job") for number in range(10)]
    for key in loud:
        world.want(key, 100)
    await asyncio.sleep(0)
    await world.done(300)
    for _ in range(20):
        before = len(world.had)
        world.want(QUIET)
        await asyncio.sleep(0)
        await world.done(1)
        assert world.had[before:] == [QUIET]
    world.want(QUIET, 100)
    await asyncio.sleep(0)
    await world.done(280)
    had = Counter(world.had)
    assert CREDIT <= had[QUIET] <= CREDIT + 28, "then it has no more than each of them"
    assert len({had[key] for key in loud}) <= 2, "all of them have had as many, or one more"
    await world.done(1200)
    assert (world.turns._waiting, world.turns._had) == ({}, {})


async def test_some_turns_are_left_for_others() -> None:
    world = World(Turns(3, 2))
    world.want(LOUD, 10)
    for _ in range(3):
        await asyncio.sleep(0)
    assert world.had == [LOUD, LOUD]
    world.want(QUIET)
    for _ in range(3):
        await asyncio.sleep(0)
    assert world.had == [LOUD, LOUD, QUIET], "at once, and not when a call of the other ends"
    await world.done(20)
    assert world.had == [LOUD, LOUD, QUIET, *[LOUD] * 8]


async def test_who_does_not_wait_any_more_takes_no_turn() -> None:
    world = World(Turns(1, 1))
    world.want(LOUD, 5)
    await asyncio.sleep(0)
    for task in world.tasks[1:4]:
        task.cancel()
    await world.done(1)
    assert world.had == [LOUD, LOUD]
    world.tasks[4].cancel()  # it has its turn, and gives it back
    await asyncio.gather(*world.tasks, return_exceptions=True)
    world.want(QUIET)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.had[-1] == QUIET
    await world.done()
    assert world.turns._waiting == {}
    assert not world.turns._held


async def test_a_call_for_one_job_does_not_wait_for_those_of_another_which_are_slow() -> None:
    late, calls = asyncio.Event(), list[str]()

    async def handle(request: web.Request) -> web.StreamResponse:
        calls.append(request.path)
        if request.path.endswith("/loud"):
            await late.wait()
        return web.json_response({"metadata": {"name": "x"}})

    async with served(handle) as api:
        loud = [asyncio.create_task(of(LOUD, lambda: api.get(PODS, "a", "loud"))) for _ in range(100)]
        async with asyncio.timeout(10):
            while len(calls) < CALLS_OF_ONE:  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.01)
            await asyncio.create_task(of(QUIET, lambda: api.get(PODS, "b", "quiet")))
        assert calls == ["/api/v1/namespaces/a/pods/loud"] * CALLS_OF_ONE + ["/api/v1/namespaces/b/pods/quiet"]
        late.set()
        await asyncio.gather(*loud)


async def test_what_jobs_compute_is_cut_into_slices_of_which_some_rounds_of_the_loop_have_one() -> None:
    turns, rounds, had = Rounds(1, 1), 0, list[tuple[Key, int]]()

    async def compute(key: Key) -> None:
        await turns.slice(key)
        had.append((key, rounds))

    tasks = [asyncio.create_task(compute(key)) for key in (*[LOUD] * 20, *[LOUD_TOO] * 20, QUIET)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        rounds += 1
    assert len(had) == 41
    assert min(after - before for (_, before), (_, after) in pairwise(had)) > ROUNDS, "a probe is answered in between"
    assert QUIET in [key for key, _ in had[:3]], "the other namespace has every second turn"
    assert LOUD_TOO in [key for key, _ in had[:4]]
    for _ in range(ROUNDS + 1):
        await asyncio.sleep(0)
    assert (turns._waiting, dict(turns._held)) == ({}, {})
    alone = asyncio.create_task(compute(QUIET))
    await asyncio.sleep(0)
    assert alone.done(), "nobody else wants one: it is had at once"


async def test_one_that_needs_all_turns_of_a_round_has_it_alone_and_is_passed_by_nobody() -> None:
    turns, rounds, had = Rounds(4, 1), 0, list[tuple[Key, int]]()

    async def compute(key: Key, needed: int) -> None:
        await turns.slice(key, needed)
        had.append((key, rounds))

    def want(key: Key, needed: int = 1) -> asyncio.Task[None]:
        return asyncio.create_task(compute(key, needed))

    small = [("a", str(number)) for number in range(40)]
    tasks = [*map(want, small[:20]), want(QUIET, 4), *map(want, small[20:])]
    cancelled = want(LOUD, 4)
    for _ in range(3):
        await asyncio.sleep(0)
        rounds += 1
    cancelled.cancel()
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        rounds += 1
    (at,) = [at for key, at in had if key == QUIET]
    assert [key for key, when in had if when == at] == [QUIET]
    assert had.index((QUIET, at)) <= 8, "its namespace comes next, and none of the others is before it twice"
    assert max(Counter(when for _, when in had).values()) == 4
    for _ in range(ROUNDS + 1):
        await asyncio.sleep(0)
    assert (turns._waiting, dict(turns._held), turns._free) == ({}, {}, 4)


async def test_slices_wait_for_a_next_round_where_those_before_them_took_longer_than_was_thought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, spent, rounds, had = Rounds(6, 1), 0.0, 0, list[int]()
    monkeypatch.setattr("lmj_operator.backend.rounds.thread_time", lambda: spent)

    async def compute(key: Key) -> None:
        nonlocal spent
        await turns.slice(key)
        had.append(rounds)
        spent += 0.6 * SECONDS

    tasks = [asyncio.create_task(compute(("a", str(number)))) for number in range(20)]
    await asyncio.sleep(0)
    rounds += 1
    assert (len(had), turns._free) == (2, 0), "four have their turns, and wait"
    tasks[4].cancel()
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        rounds += 1
    assert len(had) == 19
    assert set(Counter(had).values()) <= {1, 2}
    assert min(after - before for before, after in pairwise(sorted(set(had)))) >= ROUNDS
    for _ in range(ROUNDS + 1):
        await asyncio.sleep(0)
    assert (turns._waiting, dict(turns._held), turns._free, turns._slices) == ({}, {}, 6, 0)


async def posted(api: MemoryApi, notebook: Notebook, count: int) -> list[str]:
    running = asyncio.create_task(notebook.run())
    async with asyncio.timeout(10):
        while len(api.names("events")) < count:  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0)
    running.cancel()
    return [body["involvedObject"]["name"] for (kind, _), body in api.objects.items() if kind == "events"]


async def test_the_event_of_a_quiet_job_does_not_wait_for_a_thousand_of_a_loud_one(caplog: pytest.LogCaptureFixture) -> None:
    api, now = MemoryApi(), 0.0
    notebook = Notebook(api, lambda: now)  # type: ignore[arg-type]
    for number in range(1000):
        notebook.post(job_body("loud")["metadata"], Note("Failed", f"number {number}"), 0.0)
    notebook.post(job_body("quiet")["metadata"], Note("Started", "its pods are being made"), 0.0)
    names = await posted(api, notebook, NOTES_AT_ONCE + 1)
    assert names == ["loud", "quiet", *["loud"] * (NOTES_AT_ONCE - 1)]
    assert len(caplog.records) == 1000 - NOTES_AT_ONCE
    now += NOTE_SECONDS
    for number in range(10):
        notebook.post(job_body("loud")["metadata"], Note("Failed", f"number {number}"), 0.0)
    assert (await posted(api, notebook, NOTES_AT_ONCE + 2))[-1] == "loud"
    now += 10 * NOTES_AT_ONCE * NOTE_SECONDS
    notebook.post(job_body("quiet")["metadata"], Note("Started", "its pods are being made"), 0.0)
    assert list(notebook._budgets) == [("team", "quiet")], "of one that was long silent nothing is kept"


async def test_a_job_makes_no_more_pods_than_its_ranks_may_need(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("lmj_operator.backend.kubernetes.creation.time.monotonic", lambda: now)
    api, cache = MemoryApi(), Cache()
    greedy = job(recovery={"backoffSeconds": 0, "maxRestarts": 1_000_000_000})
    creation = Creation(api, cache, Children(api, cache.children, SETTINGS), SETTINGS)  # type: ignore[arg-type]

    async def asked() -> int:
        """Pods that there are after a thousand more were asked for."""
        for _ in range(1000):
            serial = len(api.names("pods")) + 1
            await creation.create(greedy, CreatePod(serial % 2, serial))
        return len(api.names("pods"))

    first = await asked()
    assert first == PODS_OF_A_RANK * 2 + PODS_BESIDES
    assert await asked() == first
    now += 15
    assert await asked() == first + int(15 * 2 / POD_SECONDS)


async def test_a_job_that_grows_by_a_rank_again_and_again_makes_as_many_pods_as_one_that_begins_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmj_operator.backend.kubernetes.creation.time.monotonic", lambda: 100.0)
    api, cache = MemoryApi(), Cache()
    creation = Creation(api, cache, Children(api, cache.children, SETTINGS), SETTINGS)  # type: ignore[arg-type]
    ranks = 8
    for replicas in range(1, ranks + 1):
        grown = job(
            pipeline={"stages": 1, "microBatches": ranks},
            model={"scratch": {"layers": 1}},
            training={"batchSize": ranks},
            dataParallel={"shards": ranks, "replicas": replicas},
        )
        for _ in range(100):
            await creation.create(grown, CreatePod(0, len(api.names("pods")) + 1))
    assert len(api.names("pods")) == PODS_OF_A_RANK * ranks + PODS_BESIDES


def test_what_one_job_may_post_is_far_less_than_all_may() -> None:
    assert NOTES_AT_ONCE * 10 < notes_module.WAITING_NOTES


async def test_of_large_pods_few_are_in_memory_at_once_and_small_ones_do_not_wait_for_them() -> None:
    held, most, over = 0, 0, asyncio.Event()

    class SlowApi(MemoryApi):
        async def create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
            nonlocal held, most
            if resource is PODS and body["metadata"]["name"].startswith("large"):
                held += 1
                most = max(most, held)
                await over.wait()
                held -= 1
            return await super().create(resource, body)

    api, cache = SlowApi(), Cache()

    def making(name: str, template: dict[str, Any]) -> list[asyncio.Task[None]]:
        spec = job_body(name, template=template)
        made = with_kept_template(cluster_job(spec, SETTINGS), packed(json.dumps(spec["spec"])))
        creation = Creation(api, cache, Children(api, cache.children, SETTINGS), SETTINGS)  # type: ignore[arg-type]
        return [asyncio.create_task(creation.create(made, CreatePod(rank, 1))) for rank in range(2)]

    label = {"metadata": {"annotations": {"note": "x" * LONG}}}
    large = [task for number in range(4) for task in making(f"large-{number}", label)]
    await asyncio.wait_for(asyncio.gather(*making("small", {})), 10)
    assert sorted(api.names("pods")) == ["small-r0-1", "small-r1-1"]
    async with asyncio.timeout(10):
        while held < LARGE_AT_ONCE:  # noqa: ASYNC110 - a pod that is being made tells nobody
            await asyncio.sleep(0.001)
    over.set()
    await asyncio.wait_for(asyncio.gather(*large), 10)
    assert len(api.names("pods")) == 10
    assert most == LARGE_AT_ONCE
