"""A backend with its agent."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from backend_fixture import Fixture

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
