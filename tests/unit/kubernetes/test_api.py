"""Calls to an API server: what its answers mean."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from served import served

from lmj_operator.backend.kubernetes import api as api_module
from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.resources import PODS


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
