"""An operator waits until the API server has jobs: it would never hear of one else."""

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import web
from served import served

from lmj_operator.backend.kubernetes.resources import JOBS
from lmj_operator.controller import served as module
from lmj_operator.controller.served import Served

GROUP, KINDS = "/apis", f"/apis/{JOBS.group}/{JOBS.version}"


@pytest.fixture
def answers() -> dict[str, Any]:
    """Of a server that has started just now."""
    return {GROUP: {"groups": [{"name": "apps"}]}}


async def test_until_the_definition_is_served(
    answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "WORD_SECONDS", 60.0)
    asked = 0
    heard = asyncio.Event()

    async def handle(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        heard.set()
        answer = answers.get(request.path)
        return web.json_response({"code": 404}, status=404) if answer is None else web.json_response(answer)

    async def stays(why: str) -> None:
        before = asked
        while asked < before + 4:
            heard.clear()
            await heard.wait()
        assert not waiting.done()
        assert there.waits is not None
        assert why in there.waits

    with caplog.at_level(logging.WARNING):
        async with served(handle) as api:
            there = Served(api)
            assert there.waits is not None
            waiting = asyncio.create_task(there.wait())
            await stays("has no livemigrationjobs.lmj.dev/v1alpha1 yet")
            answers[GROUP] = {"groups": [{"name": "apps"}, {"name": JOBS.group}]}
            await stays("has no livemigrationjobs")
            answers[KINDS] = {"resources": [{"name": f"{JOBS.plural}/status"}]}
            await stays("is the CustomResourceDefinition installed?")
            answers[KINDS]["resources"].append({"name": JOBS.plural})
            await asyncio.wait_for(waiting, 30)
            assert there.waits is None
    assert len(caplog.records) == 1, "not at each try"


async def test_a_server_that_does_not_answer_is_asked_again(answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    answers |= {GROUP: {"groups": [{"name": JOBS.group}]}, KINDS: {"resources": [{"name": JOBS.plural}]}}
    left = [3]

    async def handle(request: web.Request) -> web.Response:
        left[0] -= 1
        return (
            web.json_response({"message": "starting"}, status=503) if left[0] >= 0 else web.json_response(answers[request.path])
        )

    async with served(handle) as api:
        there = Served(api)
        await asyncio.wait_for(there.wait(), 30)
    assert there.waits is None
    assert left[0] < 0
