import asyncio
import gc
import itertools
import json
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from cluster.api import Api, ApiError
from cluster.calls import Target, Write, target_of
from cluster.faults import CutWatch, Delay, Drop, Fault, Program, Refuse, Rule, Stale
from cluster.proxy import Moment, Proxy, in_thread

pytestmark = pytest.mark.integration

PODS = "/api/v1/namespaces/default/pods"


class Upstream:
    """A server with one counter: writes raise it, reads tell it, a watch counts from 1 to 10."""

    def __init__(self) -> None:
        self.value = 0
        self.tokens: list[str] = []
        self.types: list[str | None] = []
        self.url = ""

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization", ""))
        self.types.append(request.headers.get("Content-Type"))
        if request.query.get("watch"):
            response = web.StreamResponse()
            await response.prepare(request)
            for number in range(1, 11):
                await response.write(json.dumps({"number": number}).encode() + b"\n")
            return response
        if request.method != "GET":
            self.value += 1
        return web.json_response({"value": self.value, "body": (await request.read()).decode(), "path": request.raw_path})


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[Upstream]:
    server = Upstream()
    runner = await server.start()
    yield server
    await runner.cleanup()


@pytest_asyncio.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        yield session


async def read(client: aiohttp.ClientSession, url: str) -> int:
    async with client.get(url) as answer:
        return int((await answer.json())["value"])


async def test_calls_pass_unchanged_and_are_logged(upstream: Upstream, client: aiohttp.ClientSession) -> None:
    async with Proxy(upstream.url) as proxy:
        path = f"{PODS}/a%2Fb/status?fieldManager=x"
        async with client.patch(proxy.url + path, data="text", headers={"Authorization": "Bearer t"}) as answer:
            assert await answer.json() == {"value": 1, "body": "text", "path": path}
        await read(client, proxy.url + PODS)
    assert upstream.tokens == ["Bearer t", ""]
    assert upstream.types == ["text/plain; charset=utf-8", None]  # an API server refuses a type without a content
    write, listing = proxy.calls
    assert (write.number, write.status, write.write, write.target.verb, write.target.subresource) == (
        1,
        200,
        1,
        "patch",
        "status",
    )
    assert (listing.number, listing.status, listing.write, listing.target.verb) == (2, 200, None, "list")


async def test_its_own_token_is_for_clients_that_bring_none(upstream: Upstream, client: aiohttp.ClientSession) -> None:
    async with Proxy(upstream.url, token="own") as proxy:
        await read(client, proxy.url + PODS)
        async with client.get(proxy.url + PODS, headers={"Authorization": "Bearer theirs"}):
            pass
    assert upstream.tokens == ["Bearer own", "Bearer theirs"]


async def test_delay(upstream: Upstream, client: aiohttp.ClientSession) -> None:
    async with Proxy(upstream.url, rules=[Rule(Delay(0.2), times=1)]) as proxy:
        start = asyncio.get_running_loop().time()
        await read(client, proxy.url + PODS)
        assert asyncio.get_running_loop().time() - start >= 0.2
        assert [call.fault for call in proxy.calls] == ["Delay"]


@pytest.mark.parametrize(("forwarded", "value"), [(False, 0), (True, 1)])
async def test_drop_before_and_after(upstream: Upstream, client: aiohttp.ClientSession, forwarded: bool, value: int) -> None:
    async with Proxy(upstream.url, rules=[Rule(Drop(forwarded), verbs=frozenset({"create"}))]) as proxy:
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.post(proxy.url + PODS)
        assert await read(client, proxy.url + PODS) == value
    assert proxy.calls[0].status is None


@pytest.mark.parametrize("status", [409, 429, 500])
async def test_refuse(upstream: Upstream, client: aiohttp.ClientSession, status: int) -> None:
    async with Proxy(upstream.url, rules=[Rule(Refuse(status, retry_after=3), times=1)]) as proxy:
        async with client.post(proxy.url + PODS) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (status, "3")
            assert (await answer.json())["code"] == status
        assert upstream.value == 0
        async with client.post(proxy.url + PODS) as answer:
            assert answer.status == 200
    assert [call.status for call in proxy.calls] == [status, 200]


async def test_an_error_although_it_was_done(upstream: Upstream, client: aiohttp.ClientSession) -> None:
    async with Proxy(upstream.url, rules=[Rule(Refuse(500, forwarded=True))]) as proxy, client.post(proxy.url + PODS) as answer:
        assert answer.status == 500
    assert upstream.value == 1


async def test_watch_is_cut_after_so_many_events(upstream: Upstream, client: aiohttp.ClientSession) -> None:
    rules = [Rule(CutWatch(3), times=1)]
    async with Proxy(upstream.url, rules=rules) as proxy:
        for expected in (3, 10):
            async with client.get(f"{proxy.url}{PODS}?watch=true") as answer:
                lines = (await answer.content.read()).splitlines()
            assert [json.loads(line)["number"] for line in lines] == list(range(1, expected + 1))
        assert [call.target.verb for call in proxy.calls] == ["watch", "watch"]


async def test_stale_reads_are_earlier_answers(upstream: Upstream, client: aiohttp.ClientSession) -> None:
    async with Proxy(upstream.url, rules=[Rule(Stale(), skip=1)]) as proxy:
        assert await read(client, proxy.url + PODS) == 0
        await client.post(proxy.url + PODS)
        assert await read(client, proxy.url + PODS) == 0
        assert await read(client, proxy.url + PODS + "/other") == 1
        proxy.program([])
        assert await read(client, proxy.url + PODS) == 1


@pytest.mark.parametrize(("moment", "value"), [(Moment.BEFORE, 1), (Moment.AFTER, 2)])
async def test_hook_stops_the_nth_write(upstream: Upstream, client: aiohttp.ClientSession, moment: Moment, value: int) -> None:
    seen = []

    def hook(write: Write, when: Moment) -> bool:
        seen.append((write.number, write.method, write.path, write.body, when))
        return (write.number, when) != (2, moment)

    async with Proxy(upstream.url, on_write=hook) as proxy:
        await client.post(proxy.url + PODS, data="body")
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.patch(f"{proxy.url}{PODS}/a")  # aiohttp sends a delete again by itself
        assert await read(client, proxy.url + PODS) == value
        assert [(call.status, call.answered) for call in proxy.calls[:2]] == [
            (200, 200),
            (None, 200 if moment is Moment.AFTER else None),
        ]
    assert seen[:3] == [
        (1, "POST", PODS, b"body", Moment.BEFORE),
        (1, "POST", PODS, b"body", Moment.AFTER),
        (2, "PATCH", f"{PODS}/a", b"", Moment.BEFORE),
    ]


async def test_a_server_that_is_away_is_a_bad_gateway(client: aiohttp.ClientSession) -> None:
    async with Proxy("http://127.0.0.1:1") as proxy, client.get(proxy.url + PODS) as answer:
        assert answer.status == 502


async def test_kubeconfig_in_a_thread_beside_blocking_code(upstream: Upstream, tmp_path: Path) -> None:
    def block() -> None:
        with in_thread(Proxy(upstream.url, token="secret", rules=[Rule(Refuse(409), path="/pods/b")])) as proxy:
            api = Api(proxy.kubeconfig(tmp_path / "kubeconfig"))
            assert api.get(f"{PODS}/a")["value"] == 0
            with pytest.raises(ApiError) as refused:
                api.get(f"{PODS}/b")
            assert refused.value.status == 409

    await asyncio.to_thread(block)
    assert upstream.tokens == ["Bearer secret"]


def test_equal_seeds_strike_equally_whatever_comes_between() -> None:
    rules = [Rule(Drop(), verbs=frozenset({"create"}), chance=0.5), Rule(Delay(1, 2), verbs=frozenset({"list"}), chance=0.5)]
    create, listing = Target("create"), Target("list")

    def faults(seed: int, listings: int) -> list[Fault | None]:
        program = Program(rules, seed)
        found = []
        for _ in range(40):
            found.append(program.fault_for(create, PODS))
            for _ in range(listings):
                program.fault_for(listing, PODS)
        return found

    assert faults(1, 0) == faults(1, 3)
    assert faults(1, 0) != faults(2, 0)
    assert {type(fault) for fault in faults(1, 0)} == {Drop, type(None)}


def test_rules_strike_within_their_bounds() -> None:
    program = Program([Rule(Delay(1, 3), skip=1, times=2), Rule(Refuse(500), path="^/apis/")])
    found = [program.fault_for(Target("get"), PODS) for _ in range(4)]
    assert [type(fault) for fault in found] == [type(None), Delay, Delay, type(None)]
    assert all(1 <= fault.seconds <= 3 for fault in itertools.chain(found) if isinstance(fault, Delay))
    assert program.fault_for(Target("get"), "/apis/apps/v1/deployments") == Refuse(500)


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/version", {}, Target("get")),
        ("GET", "/api/v1", {}, Target("get")),
        ("GET", "/apis/lmj.dev/v1alpha1", {}, Target("get")),
        ("GET", PODS, {}, Target("list", "", "pods", "", "default")),
        ("GET", "/api/v1/pods", {"watch": "true"}, Target("watch", "", "pods")),
        ("GET", f"{PODS}/a", {}, Target("get", "", "pods", "", "default", "a")),
        ("GET", f"{PODS}/a/log", {}, Target("get", "", "pods", "log", "default", "a")),
        ("DELETE", PODS, {}, Target("deletecollection", "", "pods", "", "default")),
        ("DELETE", f"{PODS}/a", {}, Target("delete", "", "pods", "", "default", "a")),
        ("POST", f"{PODS}/a/eviction", {}, Target("create", "", "pods", "eviction", "default", "a")),
        ("GET", "/api/v1/namespaces", {}, Target("list", "", "namespaces")),
        ("GET", "/api/v1/namespaces/x", {}, Target("get", "", "namespaces", "", "", "x")),
        ("PUT", "/api/v1/namespaces/x/finalize", {}, Target("update", "", "namespaces", "finalize", "", "x")),
        (
            "PATCH",
            "/apis/lmj.dev/v1alpha1/namespaces/x/livemigrationjobs/j/status",
            {},
            Target("patch", "lmj.dev", "livemigrationjobs", "status", "x", "j"),
        ),
    ],
)
def test_targets_are_those_of_rbac(method: str, path: str, query: dict[str, str], expected: Target) -> None:
    assert target_of(method, path, query) == expected


def test_a_thread_s_proxy_ends_with_the_calls_that_still_wait(caplog: pytest.LogCaptureFixture) -> None:
    with in_thread(Proxy("http://127.0.0.1:1", rules=[Rule(Delay(100))])) as proxy:
        with pytest.raises(OSError, match="timed out"):
            urllib.request.urlopen(proxy.url + PODS, timeout=0.2)
        assert len(proxy.calls) == 1
    del proxy
    gc.collect()
    assert "destroyed" not in caplog.text
