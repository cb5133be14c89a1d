"""Calls to an API server: what its answers mean."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from served import served

from lmj_operator.backend.kubernetes import api as api_module
from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.resources import JOBS, PODS


class Server:
    """Answers each method with what it is told to."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {}
        self.api: Api

    async def handle(self, request: web.Request) -> web.Response:
        status, body = self.answers[request.method]
        return web.json_response(body, status=status)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    async with served(made.handle) as made.api:
        yield made


CONFLICT = (409, {"kind": "Status", "reason": "Conflict", "message": "it was changed"})


@pytest.mark.parametrize("there", [(404, {}), (200, {"metadata": {"uid": "another"}})])
async def test_another_object_of_the_name_is_not_deleted(server: Server, there: tuple[int, dict[str, Any]]) -> None:
    server.answers = {"DELETE": CONFLICT, "GET": there}
    assert await server.api.delete(PODS, "team", "tiny-r0-1", uid="ours") is False


async def test_a_conflict_does_not_say_that_the_object_is_gone(server: Server) -> None:
    server.answers = {"DELETE": CONFLICT, "GET": (200, {"metadata": {"uid": "ours"}})}
    with pytest.raises(ApiError, match="it was changed"):
        await server.api.delete(PODS, "team", "tiny-r0-1", uid="ours")
    server.answers["DELETE"] = (404, {})
    assert await server.api.delete(PODS, "team", "tiny-r0-1", uid="ours") is False


async def test_what_a_refusal_says_is_a_line_of_bounded_length(server: Server) -> None:
    """A template of a thousand wrong fields is refused in a megabyte, in the words of whoever wrote it, which status and logs would have."""
    server.answers = {"POST": (422, {"kind": "Status", "reason": "Invalid", "message": "wrong:\n\x1b[2J" + "x" * 1_000_000})}
    with pytest.raises(ApiError) as caught:
        await server.api.create(PODS, {"metadata": {"name": "tiny-r0-1", "namespace": "team"}})
    assert len(caught.value.message) == 1000
    assert caught.value.message.isprintable()
    assert caught.value.message.startswith("wrong:  [2Jxx")
    assert len(str(caught.value)) < 1200


async def test_a_deletion_names_the_very_object() -> None:
    told: list[dict[str, Any]] = []

    async def handle(request: web.Request) -> web.Response:
        told.append(await request.json())
        return web.json_response({})

    async with served(handle) as api:
        assert await api.delete(PODS, "team", "tiny-r0-1", uid="ours", grace=0)
        assert await api.delete(PODS, "team", "tiny-r0-1", uid="ours")
    assert [(options["preconditions"], options.get("gracePeriodSeconds")) for options in told] == [
        ({"uid": "ours"}, 0),
        ({"uid": "ours"}, None),
    ]


async def test_a_watch_on_which_nothing_comes_ends_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are servers without bookmarks: what does not change for long would be warned about for ever."""
    monkeypatch.setattr(api_module, "WATCH_TIMEOUT", aiohttp.ClientTimeout(sock_read=0.2))
    event = {"type": "ADDED", "object": {"metadata": {"name": "tiny-r0-1"}}}

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps(event).encode() + b"\n")
        await asyncio.sleep(30)
        return response

    async with served(handle) as api:
        assert [seen async for seen in api.watch(PODS, "team", {})] == [("ADDED", event["object"])]


async def test_a_server_that_does_not_answer_a_watch_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "WATCH_TIMEOUT", aiohttp.ClientTimeout(sock_read=0.2))

    async def handle(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async with served(handle) as api:
        with pytest.raises(ApiError) as caught:
            [seen async for seen in api.watch(PODS, "team", {})]
    assert (caught.value.status, caught.value.reason) == (0, "Unreachable")


async def test_what_a_call_took_is_known_where_the_server_lives() -> None:
    """One that answers nobody is not kept busy by this call."""
    went_on = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            await went_on.wait()
        return web.json_response({})

    body = {"metadata": {"name": "tiny", "namespace": "team"}}
    async with served(handle) as api:
        with pytest.raises(ApiError) as alone:
            await api.apply(JOBS, body, seconds=0.2)
        slow = asyncio.create_task(api.apply(JOBS, body, seconds=0.4))
        await asyncio.sleep(0.1)
        await api.get(PODS, "team", "tiny-r0-1")
        with pytest.raises(ApiError) as beside:
            await slow
        went_on.set()
    assert alone.value.unknown
    assert alone.value.took == 0
    assert beside.value.unknown
    assert 0.3 < beside.value.took < 10


async def test_an_apply_may_be_answered_with_the_metadata_alone() -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.headers["Accept"])
        return web.json_response({"metadata": {"resourceVersion": "7"}})

    body = {"metadata": {"name": "tiny", "namespace": "team"}}
    async with served(handle) as api:
        await api.apply(JOBS, body, subresource="status")
        await api.apply(JOBS, body, subresource="status", metadata=True)
    assert asked == ["application/json", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"]


async def test_an_apply_is_yaml_whatever_is_in_its_texts() -> None:
    asked: list[tuple[str, str]] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append((request.headers["Content-Type"].partition(";")[0], await request.text()))
        return web.json_response({})

    text = '\U0001f917 loads \u00e9\x7f\x85\u2028 \\ \\ud83d " \n \x00'
    body = {"metadata": {"name": "tiny", "namespace": "team"}, "status": {"message": text}}
    async with served(handle) as api:
        await api.apply(JOBS, body, subresource="status")
        await api.apply(JOBS, body | {"status": {"message": "half of one: \ud83d"}}, subresource="status")
    assert [kind for kind, _ in asked] == ["application/apply-patch+yaml"] * 2
    # Its writers escape half characters in JSON: a reader of YAML refuses them.
    assert [yaml.safe_load(sent)["status"]["message"] for _, sent in asked] == [text, "half of one: \ufffd"]
    assert asked[0][1].isascii()
    assert asked[0][1].isprintable()
