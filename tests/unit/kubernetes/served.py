"""An API server of a test's own, and a client of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from lmj_operator.backend.kubernetes.api import Api


@asynccontextmanager
async def served(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Api]:
    """Calls to a server at 127.0.0.1 of which ``handle`` answers every request."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with ApiClient(configuration) as client:
        yield Api(client)
    await runner.cleanup()
