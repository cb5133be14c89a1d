"""What the watches tell, of a server whose watches end, break, and forget."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from served import served

from lmj_operator.backend.kubernetes import watch as module
from lmj_operator.backend.kubernetes.cache import Cache
from lmj_operator.backend.kubernetes.resources import PODS
from lmj_operator.backend.kubernetes.watch import Sink, Watch
from lmj_operator.controller.controller import Controller, watches

pytestmark = pytest.mark.integration

SECONDS = 20.0


def pod(name: str, version: int, uid: str = "1") -> dict[str, Any]:
    labels = {"lmj.dev/job": "tiny", "lmj.dev/role": "rank"}
    return {"metadata": {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(version), "labels": labels}}


class Server:
    """Pods, and what is told of them: each watch gets the next of ``watches``. With None at its end it stays open."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 1
        self.watches: list[list[dict[str, Any] | bytes | int | None]] = []
        self.asked: list[dict[str, str]] = []
        self.lists: list[int] = []
        """What a list is answered with, before it succeeds."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.path == "/api/v1/namespaces/team/pods"
        query = dict(request.query)
        self.asked.append(query)
        assert query["labelSelector"] == "lmj.dev/job", "the pods of others are nothing to us"
        if "watch" in query:
            return await self._watch(request)
        if self.lists:
            return web.json_response({"message": "not now"}, status=self.lists.pop(0))
        begin, limit = int(query.get("continue", "0")), int(query["limit"])
        names = sorted(self.pods)
        more = {"continue": str(begin + limit)} if len(names) > begin + limit else {}
        items = [self.pods[name] for name in names[begin : begin + limit]]
        return web.json_response({"metadata": {"resourceVersion": str(self.version), **more}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        told = self.watches.pop(0) if self.watches else [None]
        if told and isinstance(told[0], int):
            return web.json_response({"message": "no watch"}, status=told[0])
        answer = web.StreamResponse()
        await answer.prepare(request)
        for part in told:
            if part is None:
                await asyncio.sleep(SECONDS)
            elif isinstance(part, bytes):
                await answer.write(part)
                assert request.transport is not None
                request.transport.abort()
            else:
                await answer.write(json.dumps(part).encode() + b"\n")
        return answer


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Server, Cache, Watch]]:
    monkeypatch.setattr(module, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "REST_SECONDS", 0.01)
    made, cache = Server(), Cache()
    async with served(made.handle) as api:
        sink = Sink(lambda: cache.known_pods("team"), cache.put_pod, cache.drop_pod)
        yield made, cache, Watch(api, PODS, sink, namespace="team", selector="lmj.dev/job")


async def until(watch: Watch, holds: Callable[[], bool]) -> None:
    """Let ``watch`` run until ``holds``."""
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(SECONDS):
            while not holds():
                assert not task.done(), task
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(cache: Cache) -> list[str]:
    return sorted(p["metadata"]["name"] for p in cache.known_pods(None))


Given = tuple[Server, Cache, Watch]


async def test_a_list_comes_in_pages_before_we_are_informed(server: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    at, cache, watch = server
    monkeypatch.setattr(module, "PAGE", 2)
    at.pods = {f"tiny-r{n}-1": pod(f"tiny-r{n}-1", n) for n in range(5)}
    at.lists = [500, 403]
    assert not watch.informed.is_set()
    await until(watch, watch.informed.is_set)
    assert names(cache) == sorted(at.pods)
    assert [q.get("continue") for q in at.asked if "limit" in q] == [None, None, None, "2", "4"]


async def test_what_it_waits_for_is_told_until_it_is_informed(server: Given) -> None:
    at, _, watch = server
    at.lists = [403] * 1000
    assert watch.waits == "does not watch pods yet: no answer yet"
    await until(watch, lambda: watch.waits == "does not watch pods yet: list /api/v1/namespaces/team/pods: 403 not now")
    at.lists = []
    await until(watch, watch.informed.is_set)
    assert watch.waits is None


async def test_a_watch_that_ended_or_broke_goes_on_where_it_was(server: Given) -> None:
    at, cache, watch = server
    at.watches = [
        [{"type": "ADDED", "object": pod("a-r0-1", 5)}, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}],
        [{"type": "ADDED", "object": pod("a-r1-1", 11)}, b'{"type": "ADDED", "obj'],
        [{"type": "DELETED", "object": pod("a-r0-1", 12)}, None],
    ]
    await until(watch, lambda: names(cache) == ["a-r1-1"] and "watch" in at.asked[-1])
    assert [q["resourceVersion"] for q in at.asked if "watch" in q] == ["1", "9", "11"]
    assert sum("limit" in q for q in at.asked) == 1


async def test_a_watch_that_is_cut_after_each_word_is_taken_up_again_as_soon_as_the_first(
    server: Given, caplog: pytest.LogCaptureFixture
) -> None:
    at, cache, watch = server
    at.watches = [[{"type": "ADDED", "object": pod(f"a-r{n}-1", 2 + n)}, b"{"] for n in range(6)]
    await until(watch, lambda: len(names(cache)) == 6 and not at.watches)
    assert {word for word in caplog.text.split() if word.startswith("0.0")} == {"0.01"}


@pytest.mark.parametrize(
    "forgotten",
    [
        [{"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old resource version"}}],
        [410],
        [504],
    ],
    ids=["event", "answer", "a version that is not there yet: an older backup was restored"],
)
async def test_what_went_while_no_watch_told_of_it_is_gone(server: Given, forgotten: list[Any]) -> None:
    at, cache, watch = server
    at.pods = {"tiny-r0-1": pod("tiny-r0-1", 1), "tiny-r1-1": pod("tiny-r1-1", 1)}
    await until(watch, lambda: any("watch" in query for query in at.asked))
    assert names(cache) == ["tiny-r0-1", "tiny-r1-1"]
    del at.pods["tiny-r0-1"]
    at.pods["tiny-r1-1"] = pod("tiny-r1-1", 7, uid="another")
    at.version, at.watches = 8, [forgotten]
    await until(watch, lambda: names(cache) == ["tiny-r1-1"])
    assert cache.known_pods(None)[0]["metadata"]["uid"] == "another"
    await until(watch, lambda: at.asked[-1].get("resourceVersion") == "8")


async def test_a_pod_that_was_made_while_the_list_was_on_its_way_stays(server: Given) -> None:
    at, cache, watch = server
    at.pods = {"tiny-r0-1": pod("tiny-r0-1", 1)}
    known = watch._sink.known

    def then_made() -> Any:
        before = list(known())
        cache.add_pod(pod("tiny-r1-1", 2))
        return before

    object.__setattr__(watch._sink, "known", then_made)
    await until(watch, watch.informed.is_set)
    assert names(cache) == ["tiny-r0-1", "tiny-r1-1"]


async def test_an_object_of_any_size_and_one_that_cannot_be_read(server: Given, caplog: pytest.LogCaptureFixture) -> None:
    at, cache, watch = server
    large, odd = pod("tiny-r0-1", 2), pod("odd-r0-1", 3)
    large["metadata"]["annotations"] = {"x": "y" * 5_000_000}
    odd["status"] = "well"
    added = [{"type": "ADDED", "object": thing} for thing in (large, odd, pod("tiny-r1-1", 4))]
    at.watches = [[*added, None]]
    await until(watch, lambda: names(cache) == ["tiny-r0-1", "tiny-r1-1"])
    assert "pods odd-r0-1 cannot be read" in caplog.text


@pytest.mark.parametrize("name", ["web", "web-7f9c-x2x4z", "web-r-1", "-r0-1"])
async def test_a_pod_of_others_that_has_our_label_is_passed_over_in_silence(
    server: Given, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    at, cache, watch = server
    told = [("ADDED", pod(name, 2)), ("MODIFIED", pod(name, 3)), ("DELETED", pod(name, 4)), ("ADDED", pod("tiny-r1-1", 5))]
    at.pods = {name: pod(name, 1)}
    at.watches = [[*({"type": kind, "object": thing} for kind, thing in told), None]]
    await until(watch, lambda: names(cache) == ["tiny-r1-1"])
    assert caplog.text == ""


async def test_jobs_other_objects_are_watched_by_their_metadata_alone() -> None:
    """Thousands of them are small."""
    kinds = ("services", "networkpolicies", "poddisruptionbudgets")
    asked: dict[tuple[str, bool], str] = {}

    async def handle(request: web.Request) -> web.StreamResponse:
        kind, watched = request.path.rpartition("/")[2], "watch" in request.query
        asked[kind, watched] = request.headers["Accept"]
        if kind in kinds:
            assert request.query["labelSelector"] == "lmj.dev/job"
        if not watched:
            there = {"metadata": {"name": "tiny-trainers", "namespace": "team", "uid": kind, "resourceVersion": "1"}}
            items = [there] if kind in kinds else None  # as a server answers a list of metadata that is empty
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        answer = web.StreamResponse()
        await answer.prepare(request)
        if kind in kinds:
            gone = {"metadata": {"name": "tiny-trainers", "namespace": "team", "uid": kind, "resourceVersion": "2"}}
            await answer.write(json.dumps({"type": "DELETED", "object": gone}).encode() + b"\n")
        await asyncio.sleep(SECONDS)
        return answer

    woken: list[tuple[str, str]] = []
    controller = Controller()
    controller.cache.children._wake = woken.append
    async with served(handle) as api:
        watching = watches(controller, api, ("team",))
        tasks = [asyncio.create_task(watch.run()) for watch in watching]
        async with asyncio.timeout(SECONDS):
            while len(woken) < len(kinds) or not all(watch.informed.is_set() for watch in watching):  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert woken == [("team", "tiny")] * len(kinds)
    part = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
    for kind in kinds:
        assert (asked[kind, False], asked[kind, True]) == (part.format("List"), part.format(""))
    assert asked["pods", False] == "application/json"
