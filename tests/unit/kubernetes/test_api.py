"""Calls to an API server: what its answers mean."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from served import served

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
