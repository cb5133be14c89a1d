"""A backend with its agent, and jobs with their tasks."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from backend_fixture import Fixture
from job_world import World

from lmj_operator.backend.kubernetes import backend as module


@pytest.fixture
async def at(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fixture]:
    async with aiohttp.ClientSession() as session:
        made = Fixture(session)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", made.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        monkeypatch.setattr(module, "AGENT_PORT", runner.addresses[0][1])
        yield made
        await made.backend.close()
        await runner.cleanup()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("lmj_operator.controller.job_task.FIRST_RETRY_SECONDS", 0.05)
    async with aiohttp.ClientSession() as session:
        made = World(session)
        posting = asyncio.create_task(made.notebook.run())
        yield made
        await made.controller.close()
        posting.cancel()
